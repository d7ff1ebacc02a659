"""A crawl from outside: put together, fed and worked on until it ends. The only folder that knows every class."""
