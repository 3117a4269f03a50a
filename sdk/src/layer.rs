//! Middleware for servers: tower layers that ask whether a call may be taken.
