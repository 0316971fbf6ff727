//! The traversal of the graph: which tensors get a gradient, and which graphs are errors.

use std::process::Command;

use candle_core::backprop::GradStore;
use candle_core::{
    test_device, CpuStorage, CustomOp1, CustomOp2, CustomOp3, DType, Device, Layout, Result, Shape,
    Tensor, Var,
};

use crate::agree::{assert_close, Tolerance};

fn cpu(data: &[f64]) -> Result<Var> {
    Var::new(data, &Device::Cpu)
}

fn of(grads: &GradStore, t: &Tensor) -> Result<Vec<f64>> {
    match grads.get(t) {
        Some(grad) => grad.flatten_all()?.to_vec1(),
        None => candle_core::bail!("no gradient"),
    }
}

/// Returns the gradient of the sum of `y` with respect to `x`.
fn slopes(y: Result<Tensor>, x: &Tensor) -> Result<Vec<f64>> {
    of(&y?.backward()?, x)
}

fn several_uses(device: &Device) -> Result<()> {
    let x = Var::new(&[3f32, 1., 4.], device)?;
    // x^2 + 5 x + 4, then a square used twice.
    let y = ((x.sqr()? + (x.as_tensor() * 5.)?)? + 4.)?;
    let grads = y.backward()?;
    assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>()?, [11., 7., 13.]);
    let square = x.sqr()?;
    let grads = ((&square * &square)? + &square)?.backward()?;
    // 4 x^3 + 2 x
    assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>()?, [114., 6., 264.]);
    let grads = x.mul(&x)?.backward()?;
    assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>()?, [6., 2., 8.]);
    Ok(())
}
test_device!(several_uses);

/// Each node is visited once, however many paths lead to it (2^60 here).
#[test]
fn shared_nodes_are_visited_once() -> Result<()> {
    let x = cpu(&[1.])?;
    let mut y = x.as_tensor().clone();
    for _ in 0..60 {
        y = ((&y + &y)? * 0.5)?;
    }
    assert_eq!(y.sorted_nodes().len(), 121);
    assert_eq!(slopes(Ok(y), &x)?, [1.]);
    Ok(())
}

#[test]
fn nodes_come_before_what_they_are_made_of() -> Result<()> {
    let x = cpu(&[1., 2.])?;
    let a = x.exp()?;
    let b = (&a * x.as_tensor())?;
    let constant = x.detach();
    let c = ((&b + &a)? + &constant)?;
    let nodes = c.sorted_nodes();
    assert_eq!(nodes[0].id(), c.id());
    let place = |t: &Tensor| nodes.iter().position(|node| node.id() == t.id());
    assert!(place(&b) < place(&a) && place(&a) < place(&x));
    assert_eq!(place(&constant), None);
    assert_eq!(nodes.len(), 5);
    Ok(())
}

/// Only variables get a gradient.
#[test]
fn variables_only() -> Result<()> {
    let x = cpu(&[1., 2.])?;
    let constant = Tensor::new(&[3f64, 4.], &Device::Cpu)?;
    let product = (x.as_tensor() * &constant)?;
    let grads = product.exp()?.backward()?;
    assert_eq!(grads.get_ids().collect::<Vec<_>>(), [&x.id()]);
    assert!(grads.get(&product).is_none() && grads.get(&constant).is_none());
    assert!(!grads.get(&x).unwrap().track_op());
    // The gradient of a tensor with respect to itself.
    assert_eq!(slopes(Ok(x.as_tensor().clone()), &x)?, [1., 1.]);
    assert_eq!(
        slopes(constant.sqr(), &x)
            .unwrap_err()
            .to_string()
            .lines()
            .next(),
        Some("no gradient")
    );
    Ok(())
}

#[test]
fn the_graph_ends_where_it_is_cut() -> Result<()> {
    let x = cpu(&[-1.5, 2.5])?;
    assert_eq!(slopes(x.detach() * x.as_tensor(), &x)?, [-1.5, 2.5]);
    let detached: [Result<Tensor>; 6] = [
        Ok(x.detach()),
        Ok(x.as_detached_tensor()),
        x.floor(),
        x.gt(0.),
        x.argmax(0),
        x.to_dtype(DType::I64)?.to_dtype(DType::F64),
    ];
    for y in detached {
        let y = y?;
        assert!(y.backward()?.get(&x).is_none());
        assert!(y.sorted_nodes().is_empty());
    }
    let ids = Var::new(&[1u32, 0], &Device::Cpu)?;
    let grads = x.index_select(&ids, 0)?.backward()?;
    assert!(grads.get(&ids).is_none() && grads.get(&x).is_some());
    Ok(())
}

/// Where a function has no derivative, the gradient is PyTorch's.
#[test]
fn kinks() -> Result<()> {
    let x = cpu(&[-2., -0., 0., 1.5])?;
    assert_eq!(slopes(x.relu(), &x)?, [0., 0., 0., 1.]);
    assert_eq!(slopes(x.abs(), &x)?, [-1., 0., 0., 1.]);
    assert_eq!(slopes(x.elu(2.), &x)?[1..], [2., 2., 1.]);
    assert_eq!(slopes(x.maximum(0.), &x)?, [0., 0.5, 0.5, 1.]);
    assert_eq!(slopes(x.clamp(-2., 1.5), &x)?, [1., 1., 1., 1.]);
    assert_eq!(slopes(x.clamp(-1., 0.), &x)?, [0., 1., 1., 0.]);
    assert_eq!(slopes(x.powf(0.), &x)?, [0., 0., 0., 0.]);
    let x = cpu(&[1., 3., 3.])?;
    assert_eq!(slopes(x.max(0), &x)?, [0., 0.5, 0.5]);
    assert_eq!(slopes(x.min(0), &x)?, [1., 0., 0.]);
    // More ties than f16 can count.
    let x = Var::zeros(4096, DType::F16, &Device::Cpu)?;
    let grads = x.max(0)?.backward()?;
    let slopes_f16 = grads.get(&x).expect("a gradient").to_dtype(DType::F64)?;
    assert_eq!(slopes_f16.to_vec1::<f64>()?, [1. / 4096.; 4096]);
    let x = Var::zeros((1, 1, 2, 2), DType::F64, &Device::Cpu)?;
    assert_eq!(slopes(x.max_pool2d(2), &x)?, [1., 0., 0., 0.]);
    Ok(())
}

/// An infinite or undefined slope of the branch not taken does not become NaN.
#[test]
fn the_other_side_stays_out() -> Result<()> {
    let x = cpu(&[0., 4.])?;
    let safe = x.gt(0.)?.where_cond(&x.sqrt()?, &x.zeros_like()?)?;
    // The square root's slope at 0 is infinite, and times 0 it is NaN, as in PyTorch; a mask before the root avoids it.
    assert!(slopes(Ok(safe), &x)?[0].is_nan());
    let positive = x.gt(0.)?.where_cond(&x, &x.ones_like()?)?;
    assert_eq!(slopes(positive.sqrt(), &x)?, [0., 0.25]);
    let x = cpu(&[-1., 4.])?;
    assert_eq!(slopes(x.relu()? * f64::INFINITY, &x)?, [0., f64::INFINITY]);
    Ok(())
}

/// Intermediate powers of large numbers do not overflow when the slope is 0 or 1.
#[test]
fn large_arguments() -> Result<()> {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let x = Tensor::new(&[-6e4f32, -300., 300., 6e4], &Device::Cpu)?.to_dtype(dtype)?;
        let x = Var::from_tensor(&x)?;
        for y in [x.gelu()?, x.gelu_erf()?, x.silu()?, x.relu()?] {
            let grads = y.backward()?;
            let grad = grads.get(&x).unwrap();
            assert_eq!(grad.dtype(), dtype);
            assert_eq!(
                grad.to_dtype(DType::F32)?.to_vec1::<f32>()?,
                [0., 0., 1., 1.]
            );
        }
    }
    Ok(())
}

fn through_dtypes(device: &Device) -> Result<()> {
    let x = Var::new(&[1.5f32, -2.], device)?;
    let y = x.to_dtype(DType::F16)?.sqr()?.to_dtype(DType::BF16)?;
    let grads = (y * 3.)?.to_dtype(DType::F32)?.sum_all()?.backward()?;
    let grad = grads.get(&x).unwrap();
    assert_eq!(grad.dtype(), DType::F32);
    assert_eq!(grad.to_vec1::<f32>()?, [9., -12.]);
    Ok(())
}
test_device!(through_dtypes);

fn through_devices(device: &Device) -> Result<()> {
    let x = Var::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    let there = x.t()?.to_device(device)?.sqr()?;
    let grads = there.to_device(&Device::Cpu)?.sum_all()?.backward()?;
    let grad = grads.get(&x).unwrap();
    assert!(grad.device().is_cpu());
    assert_eq!(grad.to_vec2::<f32>()?, [[2., 4.], [6., 8.]]);
    Ok(())
}
test_device!(through_devices);

#[test]
fn nothing_to_multiply() -> Result<()> {
    let var = |dims: (usize, usize)| Var::zeros(dims, DType::F64, &Device::Cpu);
    for (m, k, n) in [(2, 0, 3), (0, 2, 3), (2, 3, 0)] {
        let (lhs, rhs) = (var((m, k))?, var((k, n))?);
        let grads = lhs.matmul(&rhs)?.backward()?;
        assert_eq!(of(&grads, &lhs)?, vec![0.; m * k]);
        assert_eq!(of(&grads, &rhs)?, vec![0.; k * n]);
        assert_eq!(slopes(lhs.sum_all(), &lhs)?, vec![1.; m * k]);
    }
    Ok(())
}

#[test]
fn stores() -> Result<()> {
    let (x, y) = (cpu(&[2.])?, cpu(&[5.])?);
    let mut grads = x.sqr()?.backward()?;
    grads.extend((x.as_tensor() * y.as_tensor())?.backward()?)?;
    assert_eq!((of(&grads, &x)?, of(&grads, &y)?), (vec![9.], vec![2.]));
    assert_eq!(grads.get_ids().count(), 2);
    let before = grads.insert(&x, x.ones_like()?);
    assert_eq!(before.unwrap().to_vec1::<f64>()?, [9.]);
    assert_eq!(grads.get_id(x.id()).unwrap().to_vec1::<f64>()?, [1.]);
    assert!(grads.insert_id(x.id(), x.zeros_like()?).is_some());
    assert_eq!(grads.remove(&x).unwrap().to_vec1::<f64>()?, [0.]);
    assert!(grads.remove(&x).is_none() && grads.get(&x).is_none());
    assert_eq!(GradStore::default().get_ids().count(), 0);
    // Different shapes cannot be added.
    let mut other = GradStore::default();
    other.insert(&y, Tensor::new(&[1f64, 2.], &Device::Cpu)?);
    assert!(grads.extend(other).is_err());
    Ok(())
}

/// An in-place change of one gradient leaves the others unchanged.
#[test]
fn gradients_share_no_elements() -> Result<()> {
    let (x, y, z) = (cpu(&[2., 3.])?, cpu(&[5., 6.])?, cpu(&[7.])?);
    let sum = (x.as_tensor() + y.as_tensor())?;
    let grads = Tensor::cat(&[&sum, &z], 0)?.sum_all()?.backward()?;
    for var in [&x, &y, &z] {
        assert!(grads.get(var).unwrap().is_contiguous());
    }
    grads.get(&x).unwrap().zero_set()?;
    assert_eq!(of(&grads, &x)?, [0., 0.]);
    assert_eq!(of(&grads, &y)?, [1., 1.]);
    assert_eq!(of(&grads, &z)?, [1.]);
    Ok(())
}

/// A partial gradient is added in place only if no other owner shares its storage.
#[test]
fn parts_of_gradients() -> Result<()> {
    let (x, y) = (cpu(&[2., 3.])?, cpu(&[5., 6.])?);
    let part = |i: usize| Tensor::cat(&[x.narrow(0, i, 1)?, x.narrow(0, 1, 1)?], 0);
    let both = (x.as_tensor() + y.as_tensor())?;
    for sum in [
        both.add(&part(0)?)?.add(&part(1)?)?,
        part(0)?.add(&part(1)?)?.add(&both)?,
    ] {
        let grads = sum.backward()?;
        assert_eq!(of(&grads, &x)?, [2., 4.]);
        assert_eq!(of(&grads, &y)?, [1., 1.]);
    }
    // A sequence split into time steps.
    let x = Var::ones((3, 50), DType::F64, &Device::Cpu)?;
    let mut state = Tensor::zeros((3, 1), DType::F64, &Device::Cpu)?;
    for i in 0..50 {
        state = ((state * 0.5)? + x.narrow(1, i, 1)?)?;
    }
    let grads = state.backward()?;
    let want: Vec<f64> = (0..50).map(|i| 0.5f64.powi(49 - i)).collect();
    assert_eq!(of(&grads, &x)?, want.repeat(3));
    Ok(())
}

/// Graphs deeper than a thread's stack, in each direction in which a graph can be deep.
#[test]
fn long_chains() -> Result<()> {
    const LEN: usize = 100_000;
    type Link = fn(&Tensor) -> Result<Tensor>;
    let links: [Link; 4] = [
        |t| t + 0.,
        |t| t + t,
        |t| Tensor::cat(&[t.narrow(0, 0, 0)?, t.clone()], 0),
        |t| t.detach() + t * 0.5,
    ];
    for link in links {
        let x = cpu(&[1.])?;
        let mut y = x.as_tensor().clone();
        let mut middle = None;
        for i in 0..LEN {
            y = link(&y)?;
            if i == LEN / 2 {
                middle = Some(y.clone());
            }
        }
        assert!(y.sorted_nodes().len() > LEN);
        let grads = y.backward()?;
        assert!(grads.get(&x).is_some());
        // Nodes in use elsewhere remain valid.
        drop(y);
        let middle = middle.unwrap();
        assert!(middle.sorted_nodes().len() > LEN / 2);
        assert!(middle.backward()?.get(&x).is_some());
    }
    Ok(())
}

/// The last owners of a graph drop it on several threads at once.
#[test]
fn graphs_end_on_any_thread() -> Result<()> {
    let x = cpu(&[1.])?;
    let mut y = x.as_tensor().clone();
    for _ in 0..50_000 {
        y = (y + 1.)?;
    }
    let ends: Vec<Tensor> = (0..8).map(|_| &y + 1.).collect::<Result<_>>()?;
    drop(y);
    let threads: Vec<_> = ends
        .into_iter()
        .map(|end| std::thread::spawn(move || drop(end)))
        .collect();
    for thread in threads {
        thread.join().expect("dropping a graph must not fail");
    }
    Ok(())
}

/// Least squares recovers the weights that generated the data.
fn linear_regression(device: &Device) -> Result<()> {
    let wanted = Tensor::new(&[[3f32], [1.]], device)?;
    let xs = Tensor::new(
        &[[1f32, 0.], [0., 1.], [-1., 0.], [0., -1.], [1., 1.]],
        device,
    )?;
    let ys = (xs.matmul(&wanted)? - 2.)?;
    let w = Var::new(&[[0f32], [0.]], device)?;
    let b = Var::new(0f32, device)?;
    for _ in 0..100 {
        let distance = xs.matmul(&w)?.broadcast_add(&b)?.sub(&ys)?;
        let grads = distance.sqr()?.mean_all()?.backward()?;
        for var in [&w, &b] {
            let step = (grads.get(var).unwrap() * 0.4)?;
            var.set(&var.sub(&step)?)?;
        }
    }
    let tolerance = Tolerance {
        relative: 1e-3,
        absolute: 0.,
    };
    assert_close(&w, &wanted.to_device(&Device::Cpu)?, tolerance, "weights")?;
    assert_close(&b, &Tensor::new(-2f32, &Device::Cpu)?, tolerance, "bias")
}
test_device!(linear_regression);

/// An update affects later computations, and no earlier results.
#[test]
fn a_set_variable() -> Result<()> {
    let x = cpu(&[3.])?;
    assert_eq!(slopes(x.sqr(), &x)?, [6.]);
    x.set(&Tensor::new(&[5f64], &Device::Cpu)?)?;
    assert_eq!(slopes(x.sqr(), &x)?, [10.]);
    Ok(())
}

/// `f(x) = x * self.0`, `x * y` and `x * y * z` as custom ops.
struct Product(Option<&'static str>);

fn product(args: &[(&CpuStorage, &Layout)]) -> Result<(CpuStorage, Shape)> {
    let shape = args[0].1.shape();
    let mut out = vec![1.; shape.elem_count()];
    for (storage, layout) in args {
        let data = storage.as_slice::<f64>()?;
        for (out, i) in out.iter_mut().zip(layout.strided_index()) {
            *out *= data[i];
        }
    }
    Ok((CpuStorage::F64(out), shape.clone()))
}

impl CustomOp1 for Product {
    fn name(&self) -> &'static str {
        self.0.unwrap_or("identity")
    }

    fn cpu_fwd(&self, s: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        product(&[(s, l)])
    }

    fn bwd(&self, _arg: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        match self.0 {
            None => Ok(Some(grad.clone())),
            Some("nothing") => Ok(None),
            Some(_) => Ok(Some(grad.unsqueeze(0)?)),
        }
    }
}

impl CustomOp2 for Product {
    fn name(&self) -> &'static str {
        "product of two"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        product(&[(s1, l1), (s2, l2)])
    }

    fn bwd(
        &self,
        x: &Tensor,
        y: &Tensor,
        _res: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((Some((grad * y)?), Some((grad * x)?)))
    }
}

impl CustomOp3 for Product {
    fn name(&self) -> &'static str {
        "product of three"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        product(&[(s1, l1), (s2, l2), (s3, l3)])
    }

    fn bwd(
        &self,
        x: &Tensor,
        _y: &Tensor,
        z: &Tensor,
        res: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        Ok((Some((grad * res / x)?), None, Some((grad * res / z)?)))
    }
}

#[test]
fn custom_ops() -> Result<()> {
    let (x, y, z) = (cpu(&[2., 3.])?, cpu(&[5., 7.])?, cpu(&[11., 13.])?);
    assert_eq!(slopes(x.sqr()?.apply_op1(Product(None)), &x)?, [4., 6.]);
    let grads = x.apply_op2(&y, Product(None))?.backward()?;
    assert_eq!(of(&grads, &x)?, [5., 7.]);
    assert_eq!(of(&grads, &y)?, [2., 3.]);
    let grads = x.apply_op3(&y, &z, Product(None))?.backward()?;
    assert_eq!(of(&grads, &x)?, [55., 91.]);
    assert!(grads.get(&y).is_none());
    assert_eq!(of(&grads, &z)?, [10., 21.]);
    // A missing gradient counts as 0, and its inputs get none either.
    let y = x.sqr()?.apply_op1(Product(Some("nothing")))?;
    assert!(y.backward()?.get(&x).is_none());
    Ok(())
}

/// An op without a gradient is an error; the graph is never cut silently.
#[test]
fn custom_ops_without_gradient() -> Result<()> {
    struct Opaque;
    impl CustomOp1 for Opaque {
        fn name(&self) -> &'static str {
            "opaque"
        }

        fn cpu_fwd(&self, s: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
            product(&[(s, l)])
        }
    }
    let x = cpu(&[2., 3.])?;
    let error = x.sqr()?.apply_op1(Opaque)?.backward().unwrap_err();
    assert!(
        error.to_string().contains("opaque has no backward pass"),
        "{error}"
    );
    // No error if the op was excluded explicitly, or if no variable is among its inputs.
    assert!(x.apply_op1_no_bwd(&Opaque)?.backward()?.get(&x).is_none());
    assert!(x.detach().apply_op1(Opaque)?.backward().is_ok());
    // Broadcasting would hide a gradient with another shape.
    let wrong = x.apply_op1(Product(Some("wrong")))?;
    let error = wrong.backward().unwrap_err().to_string();
    for part in ["wrong", "[1, 2]", "[2]"] {
        assert!(error.contains(part), "{error}");
    }
    Ok(())
}

/// With `CANDLE_GRAD_DO_NOT_DETACH` gradients are differentiable themselves. The variable applies to the whole process, so the test runs
/// itself in child processes.
#[test]
fn gradients_of_gradients_by_environment() -> Result<()> {
    const VARIABLE: &str = "CANDLE_GRAD_DO_NOT_DETACH";
    const EXPECTED: &str = "CANDLE_TEST_KEEPS_GRAPH";
    let Ok(keeps) = std::env::var(EXPECTED) else {
        for (value, keeps) in [("1", "yes"), ("true", "yes"), ("0", "no"), ("", "no")] {
            let child = Command::new(std::env::current_exe()?)
                .args([
                    "--exact",
                    "backprop::walk::gradients_of_gradients_by_environment",
                ])
                .env(VARIABLE, value)
                .env(EXPECTED, keeps)
                .output()?;
            let text = String::from_utf8_lossy(&child.stdout);
            assert!(
                child.status.success() && text.contains("1 passed"),
                "{value:?}: {text}"
            );
        }
        return Ok(());
    };
    let x = cpu(&[2., 3.])?;
    let first = x.powf(3.)?.backward()?;
    let first = first.get(&x).unwrap();
    assert_eq!(first.to_vec1::<f64>()?, [12., 27.]);
    assert_eq!(first.track_op(), keeps == "yes");
    if keeps == "yes" {
        assert_eq!(slopes(Ok(first.clone()), &x)?, [12., 18.]);
    }
    Ok(())
}
