//! Decides whether a request fits: claim, reclaim, retry, refuse.

pub mod claim;
pub mod guard;
pub mod near_limit;
pub mod refusal;
pub mod retry;
pub mod small;
