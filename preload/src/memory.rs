//! Device memory: reserved against the account before the driver is asked, charged at what the driver really takes.

pub mod admission;
pub mod granules;
pub mod ledger;
pub mod objects;
pub mod reconcile;
