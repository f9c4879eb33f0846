// Which request runs next.
