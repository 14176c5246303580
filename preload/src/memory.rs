//! Device memory: claimed in the account before the driver is called, charged at what the driver really takes.

pub mod admission;
pub mod granules;
pub mod ledger;
pub mod objects;
pub mod reconcile;
