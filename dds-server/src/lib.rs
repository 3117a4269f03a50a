//! The delivery plane of Rulecast: stores, index, views, streams, rollout.

pub mod admin;
pub mod app;
pub mod index;
pub mod mapping;
pub mod observe;
pub mod pods;
pub mod reports;
pub mod rollout;
pub mod scope;
pub mod status;
pub mod store;
pub mod stream;
pub mod view;
pub mod views;
