"""Operating the product: metrics of each role, and traces from a write to the page that shows it."""
