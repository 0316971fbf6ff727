//! The backend of one guest: what is the same on every device.

use parking_lot::Mutex;

use crate::buffers::Buffers;
use crate::checks::{self, Given, SplitBuffers};
use crate::runtime::{Forest, Operand, Pending, Runtime, SplitInputs};
use crate::{
    AverageParams, BatchPredictParams, BootstrapParams, BufferId, BufferUsage, DeviceInfo,
    ElementwiseParams, FindSplitParams, GpuBackend, Limits, MatmulParams, PendingRead,
    ReduceParams, Result,
};

pub(crate) struct Guest<R: Runtime> {
    runtime: R,
    info: DeviceInfo,
    /// Held while a call is made, so that calls have an order; not while a read is waited for.
    buffers: Mutex<Buffers<R::Buffer>>,
}

impl<R: Runtime> Guest<R> {
    pub(crate) fn new(runtime: R, limits: Limits) -> Self {
        let description = runtime.describe();
        Self {
            info: DeviceInfo {
                name: description.name,
                backend: description.backend,
                total_memory: limits.memory,
                is_hardware: description.is_hardware,
                compute_capability: description.compute_capability,
            },
            runtime,
            buffers: Mutex::new(Buffers::new(limits)),
        }
    }

    fn check(&self) -> Result<()> {
        self.runtime.stop().check()?;
        self.runtime.check()
    }

    fn start_read(&self, buffer: BufferId, offset: u64, size: u32) -> Result<R::Pending> {
        self.check()?;
        let buffers = self.buffers.lock();
        let bytes = buffers.bytes(buffer)?;
        checks::range("buffer-read", buffer, bytes, offset, size.into())?;
        self.runtime.begin_read(buffers.get(buffer)?, offset, size)
    }
}

/// The buffers of one kernel's call.
struct Call<'a, B> {
    kernel: &'static str,
    buffers: &'a Buffers<B>,
}

impl<B> Call<'_, B> {
    fn given(&self, buffer: &'static str, id: BufferId) -> Result<Given> {
        Ok(Given {
            kernel: self.kernel,
            buffer,
            bytes: self.buffers.bytes(id)?,
        })
    }
}

impl<R: Runtime> GpuBackend for Guest<R> {
    fn get_device_info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn buffer_create(&self, size: u64, _: BufferUsage) -> Result<BufferId> {
        self.check()?;
        if size == 0 {
            return checks::invalid(
                "buffer-create: a buffer of 0 bytes: ask for at least 1".into(),
            );
        }
        let most = self.runtime.max_buffer();
        self.buffers.lock().add(size, || {
            if size > most {
                return checks::invalid(format!(
                    "buffer-create: {size} bytes were asked for, this device has at most {most} in one buffer: use several"
                ));
            }
            self.runtime.create(size)
        })
    }

    fn buffer_write(&self, buffer: BufferId, offset: u64, data: &[u8]) -> Result<()> {
        self.check()?;
        let mut buffers = self.buffers.lock();
        let bytes = buffers.bytes(buffer)?;
        checks::range("buffer-write", buffer, bytes, offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(());
        }
        buffers.writing(buffer, |_, dst| self.runtime.write(dst, offset, data))
    }

    fn buffer_read(&self, buffer: BufferId, offset: u64, size: u32) -> Result<Vec<u8>> {
        if cfg!(all(target_arch = "wasm32", target_os = "unknown")) && self.info.backend == "webgpu"
        {
            return checks::invalid(
                "buffer-read: a browser's thread cannot wait for the GPU: the host has to use begin_read".into(),
            );
        }
        self.start_read(buffer, offset, size)?.wait()
    }

    fn begin_read(&self, buffer: BufferId, offset: u64, size: u32) -> Result<PendingRead> {
        let pending = self.start_read(buffer, offset, size)?;
        Ok(Box::pin(pending.arrive()))
    }

    fn buffer_copy(
        &self,
        src: BufferId,
        src_offset: u64,
        dst: BufferId,
        dst_offset: u64,
        size: u64,
    ) -> Result<()> {
        self.check()?;
        let mut buffers = self.buffers.lock();
        let (src_bytes, dst_bytes) = (buffers.bytes(src)?, buffers.bytes(dst)?);
        checks::range("buffer-copy, source", src, src_bytes, src_offset, size)?;
        checks::range("buffer-copy, target", dst, dst_bytes, dst_offset, size)?;
        if size == 0 || (src, src_offset) == (dst, dst_offset) {
            return Ok(());
        }
        buffers.writing(dst, |buffers, to| {
            if src == dst {
                return self.runtime.copy_within(to, src_offset, dst_offset, size);
            }
            let from = buffers.get(src)?;
            self.runtime.copy(from, src_offset, to, dst_offset, size)
        })
    }

    fn stop(&self) {
        self.runtime.stop().set();
    }

    fn buffer_destroy(&self, buffer: BufferId) -> Result<()> {
        self.check()?;
        self.buffers.lock().remove(buffer)
    }

    fn sync(&self) {
        self.runtime.sync();
    }

    fn kernel_bootstrap_sample(
        &self,
        params: BootstrapParams,
        output_indices: BufferId,
    ) -> Result<()> {
        self.check()?;
        let mut buffers = self.buffers.lock();
        let call = Call {
            kernel: "bootstrap-sample",
            buffers: &buffers,
        };
        let output = call.given("output-indices", output_indices)?;
        if !checks::bootstrap_sample(&params, output)? {
            return Ok(());
        }
        buffers.writing(output_indices, |_, output| {
            self.runtime.bootstrap_sample(params, output)
        })
    }

    fn kernel_find_split(
        &self,
        params: FindSplitParams,
        data: BufferId,
        labels: BufferId,
        indices: BufferId,
        thresholds: BufferId,
        output_scores: BufferId,
    ) -> Result<()> {
        self.check()?;
        let mut buffers = self.buffers.lock();
        let call = Call {
            kernel: "find-split",
            buffers: &buffers,
        };
        let sizes = SplitBuffers {
            data: buffers.bytes(data)?,
            labels: buffers.bytes(labels)?,
            indices: call.given("indices", indices)?,
            thresholds: call.given("thresholds", thresholds)?,
            scores: call.given("output-scores", output_scores)?,
        };
        let inputs = [
            ("data", data),
            ("labels", labels),
            ("indices", indices),
            ("thresholds", thresholds),
        ];
        checks::distinct(call.kernel, ("output-scores", output_scores), &inputs)?;
        let Some(rows) = checks::find_split(&params, sizes)? else {
            return Ok(());
        };
        buffers.writing(output_scores, |buffers, output| {
            let inputs = SplitInputs {
                data: buffers.get(data)?,
                labels: buffers.get(labels)?,
                indices: buffers.get(indices)?,
                thresholds: buffers.get(thresholds)?,
                rows,
            };
            self.runtime.find_split(params, inputs, output)
        })
    }

    fn kernel_average(
        &self,
        params: AverageParams,
        tree_predictions: BufferId,
        output: BufferId,
    ) -> Result<()> {
        self.check()?;
        let mut buffers = self.buffers.lock();
        let call = Call {
            kernel: "average",
            buffers: &buffers,
        };
        let sizes = (
            call.given("tree-predictions", tree_predictions)?,
            call.given("output", output)?,
        );
        let inputs = [("tree-predictions", tree_predictions)];
        checks::distinct(call.kernel, ("output", output), &inputs)?;
        if !checks::average(&params, sizes.0, sizes.1)? {
            return Ok(());
        }
        buffers.writing(output, |buffers, output| {
            let predictions = buffers.get(tree_predictions)?;
            self.runtime.average(params, predictions, output)
        })
    }

    fn kernel_matmul(
        &self,
        params: MatmulParams,
        a: BufferId,
        b: BufferId,
        c: BufferId,
    ) -> Result<()> {
        self.check()?;
        let mut buffers = self.buffers.lock();
        let call = Call {
            kernel: "matmul",
            buffers: &buffers,
        };
        let sizes = (
            call.given("a", a)?,
            call.given("b", b)?,
            call.given("c", c)?,
        );
        checks::distinct(call.kernel, ("c", c), &[("a", a), ("b", b)])?;
        if !checks::matmul(&params, sizes.0, sizes.1, sizes.2)? {
            return Ok(());
        }
        buffers.writing(c, |buffers, c| {
            let (a, b) = (buffers.get(a)?, buffers.get(b)?);
            self.runtime.matmul(params, a, b, c)
        })
    }

    fn kernel_elementwise(
        &self,
        params: ElementwiseParams,
        input_a: BufferId,
        input_b: Option<BufferId>,
        output: BufferId,
    ) -> Result<()> {
        self.check()?;
        let mut buffers = self.buffers.lock();
        let call = Call {
            kernel: "elementwise",
            buffers: &buffers,
        };
        let input_b = input_b.filter(|_| params.op.is_binary());
        let a = call.given("input-a", input_a)?;
        let b = input_b.map(|b| call.given("input-b", b)).transpose()?;
        if !checks::elementwise(&params, a, b, call.given("output", output)?)? {
            return Ok(());
        }
        buffers.writing(output, |buffers, to| {
            let operand = |id: BufferId| -> Result<Operand<'_, R::Buffer>> {
                if id == output {
                    return Ok(Operand::Output);
                }
                Ok(Operand::Other(buffers.get(id)?))
            };
            let b = input_b.map(operand).transpose()?;
            self.runtime.elementwise(params, operand(input_a)?, b, to)
        })
    }

    fn kernel_reduce(&self, params: ReduceParams, input: BufferId, output: BufferId) -> Result<()> {
        self.check()?;
        let mut buffers = self.buffers.lock();
        let call = Call {
            kernel: "reduce",
            buffers: &buffers,
        };
        let sizes = (call.given("input", input)?, call.given("output", output)?);
        checks::distinct(call.kernel, ("output", output), &[("input", input)])?;
        checks::reduce(&params, sizes.0, sizes.1)?;
        buffers.writing(output, |buffers, output| {
            self.runtime.reduce(params, buffers.get(input)?, output)
        })
    }

    fn kernel_batch_predict(
        &self,
        params: BatchPredictParams,
        samples: BufferId,
        tree_nodes: BufferId,
        tree_offsets: BufferId,
        output: BufferId,
    ) -> Result<()> {
        self.check()?;
        let mut buffers = self.buffers.lock();
        let call = Call {
            kernel: "batch-predict",
            buffers: &buffers,
        };
        let sizes = (
            call.given("samples", samples)?,
            buffers.bytes(tree_nodes)?,
            call.given("tree-offsets", tree_offsets)?,
            call.given("output", output)?,
        );
        let inputs = [
            ("samples", samples),
            ("tree-nodes", tree_nodes),
            ("tree-offsets", tree_offsets),
        ];
        checks::distinct(call.kernel, ("output", output), &inputs)?;
        let walk = checks::batch_predict(&params, sizes.0, sizes.1, sizes.2, sizes.3)?;
        let Some(walk) = walk else {
            return Ok(());
        };
        buffers.writing(output, |buffers, output| {
            let forest = Forest {
                samples: buffers.get(samples)?,
                nodes: buffers.get(tree_nodes)?,
                offsets: buffers.get(tree_offsets)?,
                node_count: walk.node_count,
                depth: walk.depth,
            };
            self.runtime.batch_predict(params, forest, output)
        })
    }
}
