"""Results as one HTML file each, which works offline: pictures with tooltips, plans to choose, and tables."""
