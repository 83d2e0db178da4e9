"""Results for people and programs: tables, documents, rows and pictures."""
