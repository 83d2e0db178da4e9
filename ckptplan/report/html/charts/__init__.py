"""Charts as Vega-Lite specifications, one chart a file."""
