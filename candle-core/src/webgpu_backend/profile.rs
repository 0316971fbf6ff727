//! Times of kernels on the GPU: a pass with two timestamps for each dispatch, summed by kernel.
//!
//! A separate pass makes every dispatch slower by some microseconds, so the sums show the distribution of time, not the running time of a
//! program.

use std::collections::HashMap;

use crate::kernel_time::KernelTime;
use crate::{Error, Result};

const QUERIES: u32 = 2 * 64;

pub(super) struct Profile {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    mapped: wgpu::Buffer,
    period_ns: f32,
    labels: Vec<String>,
    /// The index of the first dispatch among `labels`.
    pub(super) first: u64,
    times: HashMap<String, (u64, f64)>,
}

impl Profile {
    pub(super) fn new(device: &wgpu::Device, queue: &wgpu::Queue) -> Self {
        let size = u64::from(QUERIES) * 8;
        let buffer = |usage| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("timestamps"),
                size,
                usage,
                mapped_at_creation: false,
            })
        };
        Self {
            queries: device.create_query_set(&wgpu::QuerySetDescriptor {
                label: None,
                ty: wgpu::QueryType::Timestamp,
                count: QUERIES,
            }),
            resolved: buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC),
            mapped: buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST),
            period_ns: queue.get_timestamp_period(),
            labels: Vec::new(),
            first: 0,
            times: HashMap::new(),
        }
    }

    /// The two timestamps of the next dispatch.
    pub(super) fn next(
        &mut self,
        label: &str,
        groups: [u32; 3],
    ) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let start = 2 * self.labels.len() as u32;
        if start + 2 > QUERIES {
            return None;
        }
        let [x, y, z] = groups;
        self.labels.push(format!("{label} @{x}x{y}x{z}"));
        Some(wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(start),
            end_of_pass_write_index: Some(start + 1),
        })
    }

    pub(super) fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        let count = 2 * self.labels.len() as u32;
        encoder.resolve_query_set(&self.queries, 0..count, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.mapped, 0, u64::from(count) * 8);
    }

    /// Waits for the submission and adds its times; `log` prints each.
    pub(super) fn collect(&mut self, device: &wgpu::Device, log: bool) -> Result<()> {
        if self.labels.is_empty() {
            return Ok(());
        }
        let bytes = 16 * self.labels.len() as u64;
        let slice = self.mapped.slice(..bytes);
        slice.map_async(wgpu::MapMode::Read, |_| ());
        device
            .poll(wgpu::PollType::wait_indefinitely())
            .map_err(|err| Error::WebGpu(format!("waiting for timestamps: {err}")))?;
        {
            let view = slice
                .get_mapped_range()
                .map_err(|err| Error::WebGpu(format!("reading timestamps: {err:?}")))?;
            let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(&view[..]);
            for (number, (label, pair)) in
                (self.first..).zip(self.labels.drain(..).zip(ticks.chunks(2)))
            {
                let us = pair[1].saturating_sub(pair[0]) as f64 * f64::from(self.period_ns) / 1e3;
                if log {
                    crate::watch::report("webgpu", &format!("#{number} took {us:.1} us"));
                }
                let sum = self.times.entry(label).or_default();
                sum.0 += 1;
                sum.1 += us;
            }
        }
        self.mapped.unmap();
        Ok(())
    }

    /// The sums, largest first.
    pub(super) fn report(self) -> Vec<KernelTime> {
        let mut times: Vec<_> = self
            .times
            .into_iter()
            .map(|(kernel, (count, total_us))| KernelTime {
                kernel,
                count,
                total_us,
            })
            .collect();
        times.sort_by(|a, b| b.total_us.total_cmp(&a.total_us));
        times
    }
}
