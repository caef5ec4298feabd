"""HTML pages and SVG plots without JavaScript."""
