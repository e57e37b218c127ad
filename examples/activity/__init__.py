"""An activity stream from end to end: a site, the broker, a lake, a report, a trend, a page. See README.md."""
