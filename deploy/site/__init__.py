"""Documents generated from the code: the atlas of events, the list of decisions, reference pages, and the site."""
