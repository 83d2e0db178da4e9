"""Results for people: tables on a terminal, and the flat rows behind CSV."""
