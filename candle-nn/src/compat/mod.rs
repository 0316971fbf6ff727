//! Upstream's former and alternative names for functions that are written elsewhere, re-exported at upstream's paths.

pub mod cpu_flash;
pub mod cpu_flash_attention;
pub mod varlen_attention;
