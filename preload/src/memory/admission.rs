//! Decides whether a call gets memory: `acquire` is the way in; the others are its steps.

pub mod acquire;
pub mod claim;
pub mod guard;
pub mod near_limit;
pub mod refusal;
pub mod retry;
pub mod small;
pub mod target;
