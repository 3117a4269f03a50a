//! A small shop whose calls Rulecast governs: a gateway, orders and stock.
