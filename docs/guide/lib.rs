#![doc = include_str!("../guide.md")]
// The check that a device is Send and Sync goes through all of wgpu's types.
#![recursion_limit = "256"]
