"""Other crawlers on shoal's frontier: a package per crawler, loaded only where its extra is installed."""
