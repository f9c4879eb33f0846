// Requests through pages, scheduler and backend.
