// The arena's plan.
