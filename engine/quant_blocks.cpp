// Block formats: tables and exact decoding.
