use super::super::extras::{Epilogue, ExtrasForm};
use super::super::Extras;
use super::*;
use crate::backend::{BackendDevice, BackendStorage};
use crate::fused::Activation;
use crate::quantized::{GgmlDType, QTensor};
use crate::webgpu_backend::kernel::{assert_valid, Elem};
use crate::webgpu_backend::ops::quantized::{Format, FORMATS};
use crate::webgpu_backend::ops::{bind, Views};
use crate::webgpu_backend::quantized::QWebGpuStorage;
use crate::webgpu_backend::{Options, WebGpuDevice, WebGpuStorage};
use crate::{CpuStorage, DType, Device, Layout, Tensor};

/// Every tile that some product uses.
fn tiles() -> Vec<CoopTile> {
    [&CoopTile::ALL[..], &[CoopTile::SQUARE], &CoopTile::LOW].concat()
}

fn format(dtype: GgmlDType) -> Format {
    Format::of(dtype).expect("a quantised format")
}

/// The kernel's text with loops instead of matrices.
pub(super) fn plain(body: &str) -> String {
    let mut body = body.to_string();
    for (cooperative, plain) in [
        ("coopLoadT<coop_mat16x16<f16, A>>(&lhs_tile[", "left("),
        ("coopLoad<coop_mat16x16<f16, B>>(&rhs_tile[", "right("),
        (
            "coopLoadT<coop_mat16x16<f16, B>>(&rhs_tile[",
            "right_of_rows(",
        ),
        ("], PITCH)", ", lane)"),
        ("], RHS_PITCH)", ", lane)"),
        ("coop_mat16x16<f16, A>", "PlainLeft"),
        ("coop_mat16x16<f16, B>", "PlainRight"),
        ("coop_mat16x16<f32, C>", "PlainSums"),
        ("coopMultiplyAdd(", "multiply_add("),
        ("coopStoreT(", "store_sums(lane, "),
        ("= &fragments[", "= ("),
        ("SLOTS * 16u];", "SLOTS * 16u);"),
        ("  @builtin(subgroup_id) subgroup: u32,\n", ""),
        ("  @builtin(subgroup_invocation_id) lane: u32,\n", ""),
        (
            ") {\n  // Tiles down",
            ") {\n  let subgroup = local / 32u;\n  let lane = local % 32u;\n  // Tiles down",
        ),
    ] {
        assert!(body.contains(cooperative), "{cooperative} in {body}");
        body = body.replace(cooperative, plain);
    }
    body + include_str!("../../shaders/matmul_matrices_plain.wgsl")
}

fn kernel(
    tile: CoopTile,
    (rhs, out): (Rhs, Elem),
    rank: usize,
    scales: Scales,
    epilogue: Epilogue,
) -> MatmulCooperative {
    let extras = ExtrasForm {
        epilogue,
        ..ExtrasForm::default()
    };
    MatmulCooperative {
        form: Form {
            lhs: Elem::F16,
            rhs,
            out,
            rank,
            extras,
        },
        tile,
        scales,
        rhs_outer: false,
        matrices: Matrices::Cooperative,
    }
}

/// Possibly no adapter here has cooperative matrices, so at least the compiler checks each form of their kernel.
#[test]
fn every_cooperative_kernel_is_valid_wgsl() {
    let dense = Rhs::Dense(Elem::F16);
    let blocks = |dtype| Rhs::Blocks(format(dtype));
    for tile in tiles() {
        for out in [Elem::F16, Elem::F32, Elem::BF16] {
            let plain = Epilogue::default();
            let added = Epilogue {
                residual: Some(out),
                ..plain
            };
            let bias = Epilogue {
                bias: Some(out),
                activation: Some(Activation::Relu2),
                ..plain
            };
            let planes = Epilogue {
                residual: Some(out),
                planes: true,
                ..bias
            };
            for (rhs, rank, scales, epilogue) in [
                (dense, 0, Scales::None, plain),
                (dense, 0, Scales::None, planes),
                (dense, 2, Scales::None, bias),
                (dense, 0, Scales::Rows, added),
                (dense, 0, Scales::Both, bias),
                (blocks(GgmlDType::Q4_0), 0, Scales::Rows, added),
                (blocks(GgmlDType::Q8_0), 0, Scales::Rows, bias),
                (blocks(GgmlDType::Q6K), 0, Scales::Rows, plain),
            ] {
                let kernel = kernel(tile, (rhs, out), rank, scales, epilogue);
                assert_valid(&kernel);
                if rhs == dense {
                    assert_valid(&MatmulCooperative {
                        rhs_outer: true,
                        ..kernel
                    });
                }
            }
        }
    }
    for &dtype in FORMATS {
        let elems = (blocks(dtype), Elem::F32);
        let epilogue = Epilogue::default();
        assert_valid(&kernel(CoopTile::SQUARE, elems, 0, Scales::Rows, epilogue));
    }
}

/// Each tile fits an adapter with 48 KiB of workgroup memory, and its loads are whole.
#[test]
fn tiles_fit_the_workgroup_memory() {
    for tile in tiles() {
        assert!(tile.shared_bytes() <= 48 << 10, "{tile:?}");
        assert!(tile.tile_m().is_multiple_of(tile.step(1)), "{tile:?}");
        let formats = FORMATS.iter().map(|dtype| Rhs::Blocks(format(*dtype)));
        for rhs in formats.chain([Rhs::Dense(Elem::F16)]) {
            let step = tile.step(tile.eights(rhs));
            assert!(tile.tile_n().is_multiple_of(step), "{tile:?} {rhs:?}");
        }
        // Rows of `n` too: the last load of each invocation is within them.
        assert!(tile.threads().is_multiple_of(tile.tile_n() / 8), "{tile:?}");
        assert!(tile.cols.is_multiple_of(tile.slots), "{tile:?}");
    }
}

/// Numbers whose products have sums that are exact in f16 and f32.
fn numbers(len: usize, step: usize) -> Vec<f32> {
    let number = |i: usize| ((i * step + i / 7) % 17) as f32 / 4. - 2.;
    (0..len).map(number).collect()
}

/// A product by one tile.
#[derive(Debug, Clone, Copy)]
struct Case {
    tile: CoopTile,
    m: usize,
    n: usize,
    k: usize,
    splits: usize,
    /// Number of matrices of dst that contain the columns.
    planes: usize,
}

/// rhs in the kernel's form, `(n, k)`, or with `outer` `(k, n)`, and its elements' values as `(n, k)`.
struct Side {
    rhs: Rhs,
    outer: bool,
    planes: Vec<WebGpuStorage>,
    factor: f32,
    values: Vec<f32>,
}

fn floats(device: &WebGpuDevice, values: &[f32], matrices: Matrices) -> Result<WebGpuStorage> {
    match matrices {
        Matrices::Cooperative => {
            let halves: Vec<_> = values.iter().map(|x| half::f16::from_f32(*x)).collect();
            device.storage_from_slice(&halves)
        }
        Matrices::Plain => device.storage_from_slice(values),
    }
}

impl Case {
    fn dense(self, device: &WebGpuDevice, matrices: Matrices) -> Result<Side> {
        let values = numbers(self.n * self.k, 5);
        Ok(Side {
            rhs: Rhs::Dense(Elem::F16),
            outer: false,
            planes: vec![floats(device, &values, matrices)?],
            factor: 1.,
            values,
        })
    }

    fn dense_in_rows_of_n(self, device: &WebGpuDevice, matrices: Matrices) -> Result<Side> {
        let Self { n, k, .. } = self;
        let side = self.dense(device, matrices)?;
        let transposed: Vec<f32> = (0..k * n).map(|i| side.values[i % n * k + i / n]).collect();
        Ok(Side {
            outer: true,
            planes: vec![floats(device, &transposed, matrices)?],
            ..side
        })
    }

    fn blocks(self, device: &WebGpuDevice, dtype: GgmlDType) -> Result<Side> {
        let dense = Tensor::from_vec(numbers(self.n * self.k, 5), (self.n, self.k), &Device::Cpu)?;
        // So small that f16 would lose it without a factor.
        let blocks = QTensor::quantize(&(dense * 1e-4)?, dtype)?;
        let weight = QWebGpuStorage::from_parts(device, dtype, &[&blocks.data()?])?;
        let window = weight.window(format(dtype), 0, self.n * self.k)?;
        Ok(Side {
            rhs: Rhs::Blocks(format(dtype)),
            outer: false,
            factor: weight.f16_factor(),
            planes: window.into_planes(),
            values: blocks.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1()?,
        })
    }

    /// Runs the kernel with a residual, and compares with sums in f64. `rounded` is the relative rounding of the operands.
    fn check(
        self,
        device: &WebGpuDevice,
        side: &Side,
        matrices: Matrices,
        rounded: f64,
    ) -> Result<()> {
        let Self { m, n, k, .. } = self;
        let x = numbers(m * k, 3);
        let lhs = floats(device, &x, matrices)?;
        let scales = device.storage_from_slice(&vec![1. / side.factor; m])?;
        let added = numbers(m * n, 7);
        let residual = device.storage_from_slice(&added)?;
        let residual_l = Layout::contiguous((m, n));
        let dst = device.alloc(m * n, DType::F32, "matmul")?;
        let problem = Problem {
            batch: 1,
            m,
            n,
            k,
            views: Views {
                len: (m * n) as u32,
                rank: 0,
                dims: [1; 8],
                strides: [[0; 8]; 2],
                offsets: [0; 2],
            },
            lhs: (k, 1),
            rhs: if side.outer { (1, n) } else { (k, 1) },
            dst_row: n / self.planes,
            dst_first: 0,
        };
        let mut bindings = vec![bind(&lhs)];
        bindings.extend(side.planes.iter().map(bind));
        bindings.extend([bind(&scales), bind(&dst)]);
        let form = (Elem::F16, side.rhs, Elem::F32);
        let run = Run {
            scales: Scales::Rows,
            factor: side.factor,
            extras: Extras {
                residual: Some((&residual, &residual_l)),
                ..Extras::default()
            },
            ..Run::new(device, &bindings, &problem, form)
        };
        run.split(self.splits, |run| run.with_matrices(self.tile, matrices))?;
        let CpuStorage::F32(got) = dst.to_cpu_storage()? else {
            unreachable!("dst is f32")
        };
        for (i, x) in x.chunks(k).enumerate() {
            for (j, w) in side.values.chunks(k).enumerate() {
                let products = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                let first = f64::from(added[i * n + j]);
                let (sum, size) = products.fold((first, first.abs()), |(sum, size), product| {
                    (sum + product, size + product.abs())
                });
                let row = n / self.planes;
                let got = got[(j / row * m + i) * row + j % row];
                let off = (f64::from(got) - sum).abs();
                assert!(
                    off <= size * rounded,
                    "{self:?} {:?} ({i}, {j}): {got} instead of {sum}",
                    side.rhs,
                );
            }
        }
        Ok(())
    }
}

/// Loads, blocks, ragged ends, parts and stores, with loops instead of the matrices that few adapters have. The tiles are small, because
/// f32 takes twice the memory.
#[test]
fn all_but_the_matrices() -> Result<()> {
    let device = WebGpuDevice::with_options(0, &Options::default())?;
    let tile = |down, across, rows, cols, depth, buffers, slots| CoopTile {
        down,
        across,
        rows,
        cols,
        depth,
        buffers,
        slots,
    };
    for tile in [
        tile(2, 2, 1, 2, 32, 1, 2),
        tile(1, 2, 2, 1, 64, 1, 1),
        tile(1, 1, 1, 2, 32, 2, 2),
    ] {
        for (m, n, k, splits, planes) in [
            (1, 1, 64, 1, 1),
            (33, 65, 192, 1, 5),
            (50, 130, 512, 3, 1),
            (17, 98, 512, 3, 2),
            (50, 136, 512, 3, 1),
        ] {
            let case = Case {
                tile,
                m,
                n,
                k,
                splits,
                planes,
            };
            let side = case.dense(&device, Matrices::Plain)?;
            case.check(&device, &side, Matrices::Plain, 0.)?;
            if n.is_multiple_of(8) {
                let side = case.dense_in_rows_of_n(&device, Matrices::Plain)?;
                case.check(&device, &side, Matrices::Plain, 0.)?;
            }
        }
    }
    // One for each kind of scales: a software adapter takes seconds to compile one.
    let (narrow, wide) = (tile(1, 1, 1, 1, 32, 1, 1), tile(1, 1, 1, 2, 64, 1, 1));
    for (dtype, tile) in [
        (GgmlDType::Q3K, narrow),
        (GgmlDType::Q5_1, narrow),
        (GgmlDType::Q4_0, wide),
        (GgmlDType::Q5_1, wide),
        (GgmlDType::Q8_1, wide),
        (GgmlDType::Q2K, wide),
        (GgmlDType::Q3K, wide),
        (GgmlDType::Q4K, wide),
        (GgmlDType::Q6K, wide),
        (GgmlDType::Q8K, wide),
    ] {
        assert_eq!(tile.eights(Rhs::Blocks(format(dtype))) == 1, tile == narrow);
        let case = Case {
            tile,
            m: 17,
            n: 24,
            k: 512,
            splits: 2,
            planes: 1,
        };
        let side = case.blocks(&device, dtype)?;
        case.check(&device, &side, Matrices::Plain, 1e-5)?;
    }
    Ok(())
}

/// The unmodified kernels, if the adapter has cooperative matrices.
#[test]
fn products_on_cooperative_matrices() -> Result<()> {
    let device = WebGpuDevice::with_options(0, &Options::default())?;
    if !device.kernels().caps.cooperative {
        println!("skipped: this adapter has no cooperative matrices");
        return Ok(());
    }
    for tile in tiles() {
        for (m, n, k, splits, planes) in [
            (1, 8, 64, 1, 1),
            (64, 256, 256, 1, 1),
            (75, 150, 192, 1, 3),
            (130, 260, 512, 3, 1),
            (130, 264, 512, 3, 1),
        ] {
            let case = Case {
                tile,
                m,
                n,
                k,
                splits,
                planes,
            };
            let side = case.dense(&device, Matrices::Cooperative)?;
            case.check(&device, &side, Matrices::Cooperative, 0.)?;
            if n.is_multiple_of(8) {
                let side = case.dense_in_rows_of_n(&device, Matrices::Cooperative)?;
                case.check(&device, &side, Matrices::Cooperative, 0.)?;
            }
        }
        for dtype in FORMATS.iter().copied().filter(|dtype| dtype.has_encoder()) {
            let case = Case {
                tile,
                m: 40,
                n: 150,
                k: 512,
                splits: 2,
                planes: 1,
            };
            let side = case.blocks(&device, dtype)?;
            // Weights are rounded to 11 bits.
            case.check(&device, &side, Matrices::Cooperative, 2f64.powi(-10))?;
        }
    }
    Ok(())
}
