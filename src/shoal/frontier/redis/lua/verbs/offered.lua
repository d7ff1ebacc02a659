-- needs: crawl
-- offered: all lanes have been walked since exits were offered or are gone (see offer).
--
-- Reply  {"ok"}
call('HDEL', P .. 'offers', '')
return {'ok'}
