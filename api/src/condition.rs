//! The condition language of ConditionRoute.
