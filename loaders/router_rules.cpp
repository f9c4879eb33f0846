// Router rules from JSON.
