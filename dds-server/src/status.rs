//! What stands on the rules about themselves: accepted or not, and who obeys them.
