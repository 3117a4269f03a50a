//! End to end, over real processes, real TLS and real files.

mod commands;
mod convergence;
mod lifecycle;
mod site;
