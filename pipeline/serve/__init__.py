"""The search server: a JSON API over indexes, and the search page that uses the API."""
