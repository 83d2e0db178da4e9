"""Results as one HTML file each, which works offline: charts to zoom, click and hover, and tables."""
