// Stop strings across token borders.
