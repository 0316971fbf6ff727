//! Method lists of the two backend traits, for backends whose methods all have the same form.
//!
//! A list names the methods that an absent backend or Metal's has to provide: `$each!` receives it and writes the methods. Methods with
//! another form there are not in the list: `new` and `alloc_uninit` of a device, `device` of a storage. The caller imports the types.

macro_rules! device_methods {
    ($each:ident, $storage:ident) => {
        $each! {
            fn location(&self) -> DeviceLocation;
            fn same_device(&self, rhs: &Self) -> bool;
            fn zeros_impl(&self, shape: &Shape, dtype: DType) -> Result<$storage>;
            fn storage_from_slice<T: WithDType>(&self, data: &[T]) -> Result<$storage>;
            fn storage_from_cpu_storage(&self, storage: &CpuStorage) -> Result<$storage>;
            fn storage_from_cpu_storage_owned(&self, storage: CpuStorage) -> Result<$storage>;
            fn rand_uniform(&self, shape: &Shape, dtype: DType, lo: f64, up: f64) -> Result<$storage>;
            fn rand_normal(&self, shape: &Shape, dtype: DType, mean: f64, std: f64) -> Result<$storage>;
            fn set_seed(&self, seed: u64) -> Result<()>;
            fn get_current_seed(&self) -> Result<u64>;
            fn synchronize(&self) -> Result<()>;
        }
    };
}

macro_rules! storage_methods {
    ($each:ident) => {
        $each! {
            fn try_clone(&self, layout: &Layout) -> Result<Self>;
            fn dtype(&self) -> DType;
            fn to_cpu_storage(&self) -> Result<CpuStorage>;
            fn affine(&self, layout: &Layout, mul: f64, add: f64) -> Result<Self>;
            fn powf(&self, layout: &Layout, exponent: f64) -> Result<Self>;
            fn elu(&self, layout: &Layout, alpha: f64) -> Result<Self>;
            fn reduce_op(&self, op: ReduceOp, layout: &Layout, dims: &[usize]) -> Result<Self>;
            fn cmp(&self, op: CmpOp, rhs: &Self, lhs_l: &Layout, rhs_l: &Layout) -> Result<Self>;
            fn to_dtype(&self, layout: &Layout, dtype: DType) -> Result<Self>;
            fn unary_impl<B: UnaryOpT>(&self, layout: &Layout) -> Result<Self>;
            fn binary_impl<B: BinaryOpT>(&self, rhs: &Self, lhs_l: &Layout, rhs_l: &Layout) -> Result<Self>;
            fn where_cond(&self, l: &Layout, t: &Self, t_l: &Layout, f: &Self, f_l: &Layout) -> Result<Self>;
            fn conv1d(&self, l: &Layout, kernel: &Self, kernel_l: &Layout, params: &ParamsConv1D) -> Result<Self>;
            fn conv_transpose1d(&self, l: &Layout, kernel: &Self, kernel_l: &Layout, params: &ParamsConvTranspose1D) -> Result<Self>;
            fn conv2d(&self, l: &Layout, kernel: &Self, kernel_l: &Layout, params: &ParamsConv2D) -> Result<Self>;
            fn conv_transpose2d(&self, l: &Layout, kernel: &Self, kernel_l: &Layout, params: &ParamsConvTranspose2D) -> Result<Self>;
            fn avg_pool2d(&self, l: &Layout, kernel_size: (usize, usize), stride: (usize, usize)) -> Result<Self>;
            fn max_pool2d(&self, l: &Layout, kernel_size: (usize, usize), stride: (usize, usize)) -> Result<Self>;
            fn upsample_nearest1d(&self, l: &Layout, target_size: usize) -> Result<Self>;
            fn upsample_nearest2d(&self, l: &Layout, target_h: usize, target_w: usize) -> Result<Self>;
            fn upsample_bilinear2d(&self, l: &Layout, target_h: usize, target_w: usize, align_corners: bool, scale_h: Option<f64>, scale_w: Option<f64>) -> Result<Self>;
            fn gather(&self, l: &Layout, ids: &Self, ids_l: &Layout, dim: usize) -> Result<Self>;
            fn scatter_set(&mut self, l: &Layout, ids: &Self, ids_l: &Layout, src: &Self, src_l: &Layout, dim: usize) -> Result<()>;
            fn scatter_add_set(&mut self, l: &Layout, ids: &Self, ids_l: &Layout, src: &Self, src_l: &Layout, dim: usize) -> Result<()>;
            fn index_select(&self, ids: &Self, l: &Layout, ids_l: &Layout, dim: usize) -> Result<Self>;
            fn index_add(&self, l: &Layout, ids: &Self, ids_l: &Layout, src: &Self, src_l: &Layout, dim: usize) -> Result<Self>;
            fn matmul(&self, rhs: &Self, bmnk: (usize, usize, usize, usize), lhs_l: &Layout, rhs_l: &Layout) -> Result<Self>;
            fn copy_strided_src(&self, dst: &mut Self, dst_offset: usize, src_l: &Layout) -> Result<()>;
            fn copy2d(&self, dst: &mut Self, d1: usize, d2: usize, src_stride1: usize, dst_stride1: usize, src_offset: usize, dst_offset: usize) -> Result<()>;
            fn const_set(&mut self, value: Scalar, layout: &Layout) -> Result<()>;
        }
    };
}

/// The ops of a storage of `webgpu_backend` or `cuda_backend`, implemented by that backend's module `ops`.
#[cfg(any(feature = "cuda", feature = "webgpu"))]
macro_rules! methods_by_ops {
    () => {
        fn affine(&self, layout: &Layout, mul: f64, add: f64) -> Result<Self> {
            ops::elementwise::affine(self, layout, mul, add)
        }

        fn powf(&self, layout: &Layout, exponent: f64) -> Result<Self> {
            ops::elementwise::powf(self, layout, exponent)
        }

        fn elu(&self, layout: &Layout, alpha: f64) -> Result<Self> {
            ops::elementwise::elu(self, layout, alpha)
        }

        fn reduce_op(&self, op: ReduceOp, layout: &Layout, dims: &[usize]) -> Result<Self> {
            ops::reduce::reduce(self, op, layout, dims)
        }

        fn cmp(&self, op: CmpOp, rhs: &Self, lhs_l: &Layout, rhs_l: &Layout) -> Result<Self> {
            ops::elementwise::cmp(self, op, rhs, lhs_l, rhs_l)
        }

        fn to_dtype(&self, layout: &Layout, dtype: DType) -> Result<Self> {
            ops::elementwise::to_dtype(self, layout, dtype)
        }

        fn unary_impl<B: UnaryOpT>(&self, layout: &Layout) -> Result<Self> {
            ops::elementwise::unary(self, layout, B::NAME)
        }

        fn binary_impl<B: BinaryOpT>(
            &self,
            rhs: &Self,
            lhs_l: &Layout,
            rhs_l: &Layout,
        ) -> Result<Self> {
            ops::elementwise::binary(self, rhs, lhs_l, rhs_l, B::NAME)
        }

        fn where_cond(
            &self,
            layout: &Layout,
            on_true: &Self,
            on_true_l: &Layout,
            on_false: &Self,
            on_false_l: &Layout,
        ) -> Result<Self> {
            ops::elementwise::where_cond(self, layout, on_true, on_true_l, on_false, on_false_l)
        }

        fn conv1d(
            &self,
            layout: &Layout,
            kernel: &Self,
            kernel_l: &Layout,
            params: &ParamsConv1D,
        ) -> Result<Self> {
            let operands = ops::conv::Operands::new(self, layout, kernel, kernel_l);
            ops::conv::run(operands, Geometry::conv1d(params)?)
        }

        fn conv_transpose1d(
            &self,
            layout: &Layout,
            kernel: &Self,
            kernel_l: &Layout,
            params: &ParamsConvTranspose1D,
        ) -> Result<Self> {
            let operands = ops::conv::Operands::new(self, layout, kernel, kernel_l);
            ops::conv::run(operands, Geometry::conv_transpose1d(params)?)
        }

        fn conv2d(
            &self,
            layout: &Layout,
            kernel: &Self,
            kernel_l: &Layout,
            params: &ParamsConv2D,
        ) -> Result<Self> {
            let operands = ops::conv::Operands::new(self, layout, kernel, kernel_l);
            ops::conv::run(operands, Geometry::conv2d(params)?)
        }

        fn conv_transpose2d(
            &self,
            layout: &Layout,
            kernel: &Self,
            kernel_l: &Layout,
            params: &ParamsConvTranspose2D,
        ) -> Result<Self> {
            let operands = ops::conv::Operands::new(self, layout, kernel, kernel_l);
            ops::conv::run(operands, Geometry::conv_transpose2d(params)?)
        }

        fn avg_pool2d(
            &self,
            layout: &Layout,
            kernel: (usize, usize),
            stride: (usize, usize),
        ) -> Result<Self> {
            ops::pool::pool2d(self, layout, kernel, stride, ops::pool::Pool::Mean)
        }

        fn max_pool2d(
            &self,
            layout: &Layout,
            kernel: (usize, usize),
            stride: (usize, usize),
        ) -> Result<Self> {
            ops::pool::pool2d(self, layout, kernel, stride, ops::pool::Pool::Max)
        }

        fn upsample_nearest1d(&self, layout: &Layout, target: usize) -> Result<Self> {
            ops::upsample::nearest(self, layout, (1, target), "upsample_nearest1d")
        }

        fn upsample_nearest2d(&self, layout: &Layout, h: usize, w: usize) -> Result<Self> {
            ops::upsample::nearest(self, layout, (h, w), "upsample_nearest2d")
        }

        fn upsample_bilinear2d(
            &self,
            layout: &Layout,
            h: usize,
            w: usize,
            align_corners: bool,
            scale_h: Option<f64>,
            scale_w: Option<f64>,
        ) -> Result<Self> {
            ops::upsample::bilinear(self, layout, (h, w), align_corners, (scale_h, scale_w))
        }

        fn gather(&self, layout: &Layout, ids: &Self, ids_l: &Layout, dim: usize) -> Result<Self> {
            ops::indexing::gather(self, layout, ids, ids_l, dim)
        }

        fn scatter_set(
            &mut self,
            layout: &Layout,
            ids: &Self,
            ids_l: &Layout,
            src: &Self,
            src_l: &Layout,
            dim: usize,
        ) -> Result<()> {
            let updates = crate::updates::Updates {
                ids,
                ids_l,
                src,
                src_l,
                dim,
            };
            ops::scatter::scatter(self, layout, updates, false)
        }

        fn scatter_add_set(
            &mut self,
            layout: &Layout,
            ids: &Self,
            ids_l: &Layout,
            src: &Self,
            src_l: &Layout,
            dim: usize,
        ) -> Result<()> {
            let updates = crate::updates::Updates {
                ids,
                ids_l,
                src,
                src_l,
                dim,
            };
            ops::scatter::scatter(self, layout, updates, true)
        }

        fn index_select(
            &self,
            ids: &Self,
            layout: &Layout,
            ids_l: &Layout,
            dim: usize,
        ) -> Result<Self> {
            ops::indexing::index_select(self, ids, layout, ids_l, dim)
        }

        fn index_add(
            &self,
            layout: &Layout,
            ids: &Self,
            ids_l: &Layout,
            src: &Self,
            src_l: &Layout,
            dim: usize,
        ) -> Result<Self> {
            ops::scatter::index_add(self, layout, ids, ids_l, src, src_l, dim)
        }

        fn matmul(
            &self,
            rhs: &Self,
            bmnk: (usize, usize, usize, usize),
            lhs_l: &Layout,
            rhs_l: &Layout,
        ) -> Result<Self> {
            ops::matmul::matmul(self, rhs, bmnk, lhs_l, rhs_l)
        }

        fn copy_strided_src(
            &self,
            dst: &mut Self,
            dst_offset: usize,
            src_l: &Layout,
        ) -> Result<()> {
            ops::elementwise::copy_strided_src(self, dst, dst_offset, src_l)
        }

        fn copy2d(
            &self,
            dst: &mut Self,
            d1: usize,
            d2: usize,
            src_stride1: usize,
            dst_stride1: usize,
            src_offset: usize,
            dst_offset: usize,
        ) -> Result<()> {
            let rows = ops::copy2d::Rows {
                d1,
                d2,
                src_stride: src_stride1,
                dst_stride: dst_stride1,
                src_offset,
                dst_offset,
            };
            ops::copy2d::copy2d(self, dst, rows)
        }

        fn const_set(&mut self, value: Scalar, layout: &Layout) -> Result<()> {
            ops::fill::const_set(self, value, layout)
        }
    };
}
