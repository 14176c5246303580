//! The arbiter: gives the tenants of one GPU turns, weighted by their limits.
//!
//! The driver's own time slicing between processes loses about a tenth of the GPU; turns of ten milliseconds and more lose one or two
//! hundredths, because passing the GPU on costs about 100 µs each time. While a tenant's turn lasts the others launch nothing.
//!
//! * [`scheduler`]: who is next and for how long. It knows no files and no clock but the one it is told, so its tests are exact.
//! * [`tenant`]: one tenant, through its own limits page (which it cannot write) and its own region (which it can write anything into).
//! * [`service`]: finds the containers, sleeps, and runs one schedule for each GPU.
//!
//! Nothing depends on the arbiter: a tenant that hears nothing from it for a tenth of a second goes on by itself, within its limit.
//! It depends on no tenant: whoever does not yield is passed over after [`scheduler::PATIENCE`], and a tenant's region is only ever
//! read as that tenant's own claim.

pub mod scheduler;
pub mod service;
pub mod tenant;
