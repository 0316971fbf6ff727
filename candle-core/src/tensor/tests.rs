//! Tests of the composed methods on every device: shapes and views, not edge cases of the kernels.

use crate::scalar::Scalar;
use crate::{test_device, CpuStorage, DType, Device, InplaceOp2, Layout, Result, Tensor, Var, D};

fn counting(dims: &[usize], device: &Device) -> Result<Tensor> {
    let count: usize = dims.iter().product();
    Tensor::arange(0f32, count as f32, device)?.reshape(dims)
}

fn cat_of_views(device: &Device) -> Result<()> {
    let t = counting(&[2, 3, 4], device)?;
    let wide = t.narrow(2, 1, 2)?;
    for dim in 0..3 {
        let turned = t.transpose(0, 1)?.contiguous()?.transpose(0, 1)?;
        let twice = Tensor::cat(&[&t, &turned, &t.narrow(dim, 1, 1)?], dim)?;
        let size = t.dim(dim)?;
        assert_eq!(twice.dim(dim)?, 2 * size + 1);
        for (start, part) in [(0, &t), (size, &t), (2 * size, &t.narrow(dim, 1, 1)?)] {
            let found = twice.narrow(dim, start, part.dim(dim)?)?;
            assert_eq!(found.to_vec3::<f32>()?, part.to_vec3::<f32>()?);
        }
    }
    let empty = wide.narrow(1, 0, 0)?;
    assert_eq!(
        Tensor::cat(&[&empty, &wide], 1)?.to_vec3::<f32>()?,
        wide.to_vec3::<f32>()?
    );
    assert_eq!(
        Tensor::stack(&[&wide, &wide], D::Minus1)?.dims(),
        [2, 3, 2, 2]
    );
    assert!(Tensor::cat(&[&t, &wide], 0).is_err());
    assert!(Tensor::cat::<Tensor, _>(&[], 0).is_err());
    Ok(())
}

fn moving_elements(device: &Device) -> Result<()> {
    let t = counting(&[2, 3], device)?;
    let rows = |t: Tensor| t.to_vec2::<f32>();
    assert_eq!(rows(t.roll(1, 1)?)?, [[2., 0., 1.], [5., 3., 4.]]);
    assert_eq!(rows(t.roll(-4, 1)?)?, [[1., 2., 0.], [4., 5., 3.]]);
    assert_eq!(rows(t.flip(&[0, 1])?)?, [[5., 4., 3.], [2., 1., 0.]]);
    assert_eq!(
        rows(t.repeat((2, 1))?)?,
        [[0., 1., 2.], [3., 4., 5.], [0., 1., 2.], [3., 4., 5.]]
    );
    assert_eq!(
        rows(t.narrow(1, 2, 1)?.repeat((1, 2))?)?,
        [[2., 2.], [5., 5.]]
    );
    assert_eq!(t.repeat((3, 1, 2))?.dims(), [3, 2, 6]);
    assert_eq!(
        rows(t.pad_with_zeros(0, 0, 1)?)?,
        [[0., 1., 2.], [3., 4., 5.], [0., 0., 0.]]
    );
    assert_eq!(
        rows(t.pad_with_same(1, 2, 1)?)?,
        [[0., 0., 0., 1., 2., 2.], [3., 3., 3., 4., 5., 5.]]
    );
    assert_eq!(t.narrow(1, 0, 0)?.pad_with_zeros(1, 1, 0)?.dims(), [2, 1]);
    let windows = counting(&[5], device)?.unfold(0, 2, 2)?;
    assert_eq!(rows(windows)?, [[0., 1.], [2., 3.]]);
    let var = Var::from_tensor(&counting(&[2, 4], device)?)?;
    let tracked = var.unfold(1, 3, 1)?;
    assert!(tracked.track_op());
    assert_eq!(
        tracked.to_vec3::<f32>()?,
        var.detach().unfold(1, 3, 1)?.to_vec3::<f32>()?
    );
    let sizes = |chunks: &[Tensor]| chunks.iter().map(|c| c.dims()[1]).collect::<Vec<_>>();
    let t = counting(&[2, 7], device)?;
    assert_eq!(sizes(&t.chunk(3, 1)?), [3, 2, 2]);
    assert_eq!(sizes(&t.chunk(9, 1)?), [1; 7]);
    assert_eq!(rows(t.chunk(3, 1)?[1].clone())?, [[3., 4.], [10., 11.]]);
    assert!(t.chunk(0, 1).is_err());
    Ok(())
}

fn assigning(device: &Device) -> Result<()> {
    let t = Tensor::zeros((2, 3, 2), DType::F32, device)?;
    let src = (counting(&[2, 1, 2], device)? + 1.)?;
    let expected = [
        [[0., 0.], [1., 2.], [0., 0.]],
        [[0., 0.], [3., 4.], [0., 0.]],
    ];
    assert_eq!(t.slice_scatter(&src, 1, 1)?.to_vec3::<f32>()?, expected);
    assert_eq!(
        t.slice_assign(&[0..2, 1..2, 0..2], &src)?
            .to_vec3::<f32>()?,
        expected
    );
    assert_eq!(
        t.slice_assign(&[..2, ..2, ..2], &src.repeat((1, 2, 1))?)?
            .sum_all()?
            .to_scalar::<f32>()?,
        20.
    );
    assert!(t.slice_assign(&[0..2, 1..3, 0..2], &src).is_err());
    assert!(t.slice_assign(&[0..2, 3..4, 0..2], &src).is_err());
    t.slice_set(&src, 1, 1)?;
    assert_eq!(t.to_vec3::<f32>()?, expected);
    assert!(t.slice_set(&src, 1, 3).is_err());
    assert!(t.slice_set(&t, 1, 0).is_err());
    t.one_set()?;
    assert_eq!(t.sum_all()?.to_scalar::<f32>()?, 12.);
    assert!(t.const_set(Scalar::U8(1)).is_err());
    let ids = Tensor::new(&[[0u32, 1], [1, 0]], device)?;
    let table = counting(&[2, 3], device)?;
    assert_eq!(table.embedding(&ids)?.dims(), [2, 2, 3]);
    let few = Tensor::new(&[[2u32], [0]], device)?.narrow(0, 0, 1)?;
    assert_eq!(table.gather(&few, 1)?.to_vec2::<f32>()?, [[2.]]);
    Ok(())
}

fn reducing(device: &Device) -> Result<()> {
    let t = Tensor::new(&[[1000f32, 1000.], [f32::NEG_INFINITY; 2]], device)?;
    let sums = t.log_sum_exp(1)?.to_vec1::<f32>()?;
    assert!(
        (sums[0] - 1000.6931).abs() < 1e-3 && sums[1] == f32::NEG_INFINITY,
        "{sums:?}"
    );
    let t = counting(&[2, 3], device)?;
    assert_eq!(t.mean((0, 1))?.to_scalar::<f32>()?, 2.5);
    assert_eq!(t.var(1)?.to_vec1::<f32>()?, [1., 1.]);
    assert_eq!(t.max_all()?.to_scalar::<f32>()?, 5.);
    assert_eq!(t.argmin(0)?.to_vec1::<u32>()?, [0, 0, 0]);
    assert_eq!(t.cumsum(0)?.to_vec2::<f32>()?, [[0., 1., 2.], [3., 5., 7.]]);
    let scalar = Tensor::new(3f32, device)?;
    assert_eq!(scalar.sum_all()?.to_scalar::<f32>()?, 3.);
    assert_eq!(scalar.max_all()?.to_scalar::<f32>()?, 3.);
    let empty = t.narrow(1, 0, 0)?;
    assert_eq!(empty.sum(1)?.to_vec1::<f32>()?, [0., 0.]);
    assert!(empty.max(1).is_err());
    assert_eq!(empty.max(0)?.elem_count(), 0);
    Ok(())
}

fn operators(device: &Device) -> Result<()> {
    let t = Tensor::new(&[1f32, 2.], device)?;
    let x = (((&t + &t)? * (2. - &t)?)? / 4.)? + (1. / t.clone())?;
    assert_eq!(x?.to_vec1::<f32>()?, [1.5, 0.5]);
    assert_eq!(t.gt(1.5)?.to_vec1::<u8>()?, [0, 1]);
    assert_eq!(t.clamp(1.25, 1.75)?.to_vec1::<f32>()?, [1.25, 1.75]);
    assert_eq!((t.clone() - t.sqr())?.to_vec1::<f32>()?, [0., -2.]);
    assert!((&t + Tensor::new(&[1f32], device)?).is_err());
    assert!((&t + Tensor::new(&[1u32, 2], device)?).is_err());
    let column = t.reshape((2, 1))?;
    assert_eq!(
        column.broadcast_mul(&t)?.to_vec2::<f32>()?,
        [[1., 2.], [2., 4.]]
    );
    Ok(())
}

fn products(device: &Device) -> Result<()> {
    let a = counting(&[2, 3, 4], device)?;
    let b = counting(&[4, 2], device)?;
    let expected = a.get(1)?.matmul(&b)?.to_vec2::<f32>()?;
    assert_eq!(a.broadcast_matmul(&b)?.get(1)?.to_vec2::<f32>()?, expected);
    let turned = a.transpose(1, 2)?.contiguous()?.t()?;
    assert_eq!(
        turned.broadcast_matmul(&b)?.get(1)?.to_vec2::<f32>()?,
        expected
    );
    assert_eq!(b.t()?.broadcast_matmul(&a.t()?)?.dims(), [2, 2, 3]);
    assert!(a.matmul(&b).is_err());
    assert_eq!(
        b.narrow(0, 0, 0)?
            .t()?
            .matmul(&b.narrow(0, 0, 0)?)?
            .to_vec2::<f32>()?,
        [[0.; 2]; 2]
    );
    let v = Tensor::new(&[1f32, 2.], device)?;
    assert_eq!(b.mv(&v)?.to_vec1::<f32>()?, [2., 8., 14., 20.]);
    assert_eq!(v.dot(&v)?.to_scalar::<f32>()?, 5.);
    Ok(())
}

fn reading_views(device: &Device) -> Result<()> {
    let t = counting(&[3, 4], device)?;
    assert_eq!(t.get(2)?.to_vec1::<f32>()?, [8., 9., 10., 11.]);
    assert_eq!(t.t()?.get(1)?.to_vec1::<f32>()?, [1., 5., 9.]);
    assert_eq!(t.narrow(0, 0, 1)?.to_vec2::<f32>()?, [[0., 1., 2., 3.]]);
    assert_eq!(t.get(1)?.get(2)?.to_scalar::<f32>()?, 6.);
    assert_eq!(
        t.get(0)?
            .broadcast_left(2)?
            .narrow(1, 0, 2)?
            .to_vec2::<f32>()?,
        [[0., 1.]; 2]
    );
    assert_eq!(
        t.narrow(1, 0, 0)?.to_vec2::<f32>()?,
        vec![Vec::<f32>::new(); 3]
    );
    let on_host = t.t()?.narrow(0, 1, 2)?.to_device(&Device::Cpu)?;
    assert_eq!(on_host.to_vec2::<f32>()?, [[1., 5., 9.], [2., 6., 10.]]);
    assert!(t.to_vec1::<f32>().is_err());
    assert!(t.to_vec2::<u32>().is_err());
    Ok(())
}

test_device!(cat_of_views);
test_device!(moving_elements);
test_device!(assigning);
test_device!(reducing);
test_device!(operators);
test_device!(products);
test_device!(reading_views);

#[test]
fn creation_rejects_what_cannot_be() {
    let cpu = &Device::Cpu;
    assert!(Tensor::zeros((usize::MAX, 2), DType::F32, cpu).is_err());
    assert!(Tensor::ones(usize::MAX / 4, DType::F32, cpu).is_err());
    assert!(Tensor::ones(2, DType::F4, cpu).is_err());
    assert!(Tensor::from_vec(vec![1f32; 3], (2, 2), cpu).is_err());
    assert!(Tensor::from_vec(vec![1f32; 3], (2, ()), cpu).is_err());
    assert!(Tensor::arange_step(0f32, 1., 0., cpu).is_err());
    assert!(Tensor::arange(0f32, f32::INFINITY, cpu).is_err());
    assert!(Tensor::arange(f32::MAX / 2., f32::MAX, cpu).is_err());
    let to_the_end = |t: Result<Tensor>| t.and_then(|t| t.to_vec1::<u8>());
    assert_eq!(
        to_the_end(Tensor::arange_step(250u8, 255, 3, cpu)).unwrap(),
        [250, 253]
    );
    let down = Tensor::arange_step(3i64, -2, -2, cpu).and_then(|t| t.to_vec1::<i64>());
    assert_eq!(down.unwrap(), [3, 1, -1]);
}

/// numpy: `arange` has `ceil((end - start) / step)` elements, each `start + i * step`.
#[test]
fn arange_counts_by_index() -> Result<()> {
    let cpu = &Device::Cpu;
    let t = Tensor::arange_step(0f32, 1000., 0.1, cpu)?.to_vec1::<f32>()?;
    assert_eq!((t.len(), t[9999]), (10_000, 999.9));
    let t = Tensor::arange_step(0.1f64, 0.5, 0.05, cpu)?.to_vec1::<f64>()?;
    assert_eq!((t.len(), t[7]), (8, 0.1 + 7. * 0.05));
    let t = Tensor::arange_step(1f64, 0., -0.1, cpu)?.to_vec1::<f64>()?;
    assert_eq!((t.len(), t[9]), (10, 1. - 9. * 0.1));
    // Above 2048, f16 represents only even numbers.
    let (start, end) = (half::f16::from_f32(2040.), half::f16::from_f32(2060.));
    let t = Tensor::arange(start, end, cpu)?
        .to_dtype(DType::F32)?
        .to_vec1::<f32>()?;
    assert_eq!((t.len(), t[7], t[8], t[19]), (20, 2047., 2048., 2060.));
    let t = Tensor::arange_step(0u8, 255, 100, cpu)?.to_vec1::<u8>()?;
    assert_eq!(t, [0, 100, 200]);
    let t = Tensor::arange_step(i64::MAX - 3, i64::MAX, 2, cpu)?.to_vec1::<i64>()?;
    assert_eq!(t, [i64::MAX - 3, i64::MAX - 1]);
    let t = Tensor::arange_step(5i32, 0, -2, cpu)?.to_vec1::<i32>()?;
    assert_eq!(t, [5, 3, 1]);
    assert_eq!(Tensor::arange(3u32, 1, cpu)?.dims(), [0]);
    assert_eq!(Tensor::arange(3f32, 1., cpu)?.dims(), [0]);
    assert!(Tensor::arange(f32::NAN, 1., cpu).is_err());
    Ok(())
}

/// Creating a view with more elements than any memory can hold is an error.
#[test]
fn views_are_not_too_large() -> Result<()> {
    let one = Tensor::zeros((1, 1), DType::F32, &Device::Cpu)?;
    let (side, most) = (1usize << 33, isize::MAX as usize / 8);
    for view in [
        one.broadcast_as((side, side)),
        one.expand((side, side)),
        one.broadcast_left((side, side)),
        one.broadcast_as((most + 1, 1)),
        one.repeat((side, side)),
        one.broadcast_as((side, 1))?
            .broadcast_add(&one.broadcast_as((1, side))?),
    ] {
        let err = view.map(|t| t.shape().clone()).unwrap_err().to_string();
        assert!(err.contains("too many elements"), "{err}");
    }
    assert_eq!(one.broadcast_as((most, 1))?.dims(), [most, 1]);
    assert_eq!(one.narrow(0, 0, 0)?.broadcast_left(side)?.elem_count(), 0);
    let windows = Tensor::zeros(4, DType::F32, &Device::Cpu)?.unfold(0, 4, usize::MAX)?;
    assert_eq!(windows.dims(), [1, 4]);
    Ok(())
}

struct AddOther;

impl InplaceOp2 for AddOther {
    fn name(&self) -> &'static str {
        "add-other"
    }

    fn cpu_fwd(
        &self,
        s1: &mut CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<()> {
        let other = s2.as_slice::<f32>()?;
        let CpuStorage::F32(data) = s1 else {
            crate::bail!("f32 only")
        };
        for (i, j) in l1.strided_index().zip(l2.strided_index()) {
            data[i] += other[j];
        }
        Ok(())
    }
}

#[test]
fn in_place_ops_refuse_their_own_storage() -> Result<()> {
    let a = counting(&[3], &Device::Cpu)?;
    let b = counting(&[3], &Device::Cpu)?;
    a.inplace_op2(&b, &AddOther)?;
    assert_eq!(a.to_vec1::<f32>()?, [0., 2., 4.]);
    assert!(a.inplace_op2(&a, &AddOther).is_err());
    assert!(a
        .narrow(0, 0, 1)?
        .inplace_op2(&a.narrow(0, 1, 1)?, &AddOther)
        .is_err());
    let var = Var::from_tensor(&a)?;
    assert!(var.set(&var.narrow(0, 0, 3)?).is_err());
    var.set(&b)?;
    assert_eq!(var.to_vec1::<f32>()?, [0., 1., 2.]);
    Ok(())
}

#[test]
fn in_place_ops_in_a_circle_do_not_wait_forever() -> Result<()> {
    let (a, b) = (counting(&[3], &Device::Cpu)?, counting(&[3], &Device::Cpu)?);
    std::thread::scope(|scope| {
        for (dst, src) in [(&a, &b), (&b, &a)] {
            scope.spawn(move || (0..1000).try_for_each(|_| dst.inplace_op2(src, &AddOther)));
            scope.spawn(move || (0..1000).try_for_each(|_| dst.add(src)?.mul(dst).map(|_| ())));
        }
    });
    Ok(())
}
