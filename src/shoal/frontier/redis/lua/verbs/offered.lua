-- needs: crawl
-- offered: note that all lanes have been walked since the last change of offers (see offer).
--
-- Reply  {"ok"}
call('HDEL', P .. 'offers', '')
return {'ok'}
