// Chat templates of the families.
