//! The daemon: jobs in from relays, answers out.
//!
//! One task, in [`actor`], owns all state; everything else talks to it by messages. It never waits for a relay, a wallet or a model:
//! relays have a task each, a job's preparation (inputs, payment) is a task, and generation is a blocking thread for each running job.
//!
//! - [`actor`]: the loop, and start and stop. `reading`: from where relays are read. `inbox`: events become jobs, or `refusals`. `prepare`: what they need
//!   first. `money`: what is paid and goes back. `prompt`: what the model reads. `work`: jobs run. `delivery`: answers are signed, kept and sent until relays have them, which `deliveries` counts. `guests`:
//!   where customers want them. `presence`: what is announced. `relays`: which connections there are. `clock`: whether this machine's time
//!   is right.
//! - [`offers`]: the models, what they take and what comes of it; natively `speech` is a model of speech. `lanes`: a queue for each sort of job.
//! - [`inputs`]: what has to be fetched before a job can run, through [`lookup`].
//! - [`settings`]: everything that can be configured. [`metrics`]: what is counted, which natively `prometheus` serves.

pub mod actor;
mod clock;
mod deliveries;
mod delivery;
mod guests;
mod inbox;
pub mod inputs;
mod lanes;
pub mod lookup;
pub mod metrics;
mod money;
pub mod offers;
mod prepare;
mod presence;
#[cfg(not(target_arch = "wasm32"))]
pub mod prometheus;
mod prompt;
mod reading;
mod recent;
mod refusals;
mod relays;
pub mod settings;
#[cfg(all(feature = "audio", not(target_arch = "wasm32")))]
pub mod speech;
mod work;

pub use actor::Service;
pub use metrics::Metrics;
pub use offers::{Listener, Offers, Product};
pub use settings::Settings;
pub use work::Generator;

pub use crate::platform::now;
