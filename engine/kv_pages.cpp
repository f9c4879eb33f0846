// The page pool.
