// Reuse of computed pages.
