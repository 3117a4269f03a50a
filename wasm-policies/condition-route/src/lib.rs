//! ConditionRoute as a Rulecast policy.
