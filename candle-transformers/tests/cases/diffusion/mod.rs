//! Models that make images of noise, each with tiny weights that depend on their names alone.

mod flux;
mod flux_pictures;
mod mmdit;
mod z_image;
mod z_image_pictures;
mod z_image_texts;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};

use super::support::{assert_close, Numbers};
use super::vision::{check, module, weights, weights_without, Forward, Made};

/// Fails unless `result` is an error whose text has all of `words`.
#[track_caller]
fn refused<T>(result: Result<T>, words: &[&str]) {
    let Err(err) = result else {
        panic!("accepted, an error with {words:?} is expected")
    };
    let text = err.to_string();
    let missing = words.iter().find(|word| !text.contains(**word));
    assert_eq!(missing, None, "in {text}");
}

/// The largest difference of two tensors of f32.
fn difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    (a - b)?.abs()?.max_all()?.to_scalar::<f32>()
}

/// Fails if what `run` makes of variables has no gradient for one of them.
fn every_weight_learns(run: impl Fn(VarBuilder<'static>) -> Result<Tensor>) -> Result<()> {
    let vars = VarMap::new();
    let results = run(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?;
    let grads = results.sqr()?.sum_all()?.backward()?;
    let vars = vars.data().lock().expect("no panic elsewhere");
    assert!(!vars.is_empty());
    for (name, var) in vars.iter() {
        let Some(grad) = grads.get(var) else {
            panic!("no gradient for {name}")
        };
        let sum = grad.abs()?.sum_all()?.to_scalar::<f32>()?;
        assert!(sum.is_finite(), "the gradient of {name} is {sum}");
    }
    Ok(())
}
