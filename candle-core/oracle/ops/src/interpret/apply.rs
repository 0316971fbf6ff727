//! Maps an op's description to the call.

use super::candle::scalar::Scalar;
use super::candle::{self, Device, IndexOp, Result, Tensor, TensorIndexer, D};
use super::cases::{Inputs, CASES};
use super::{dtype, neural, values};
use crate::case::{Index, Op};
use crate::value::{Ty, Value};
use float8::F8E4M3;
use half::{bf16, f16};

/// Calls the method of that name among those listed, with the arguments.
macro_rules! call {
    ($name:expr, $t:expr, $arguments:tt, $($method:ident)+) => {
        match *$name {
            $(stringify!($method) => $t.$method $arguments,)+
            other => candle::bail!("the interpreter knows no {other}"),
        }
    };
}
pub(super) use call;

/// An axis as candle's corresponding type: `usize`, or `D`.
macro_rules! on_axis {
    ($axis:expr, |$d:ident| $body:expr) => {
        match $axis {
            -1 => {
                let $d = D::Minus1;
                $body
            }
            -2 => {
                let $d = D::Minus2;
                $body
            }
            a if a < 0 => {
                let $d = D::Minus(a.unsigned_abs());
                $body
            }
            a => {
                let $d = a.unsigned_abs();
                $body
            }
        }
    };
}

/// Numbers in the element type of a dtype, the form that methods with numbers require.
macro_rules! with_numbers {
    ($ty:expr, ($($n:ident = $number:expr),+), $body:expr) => {
        match $ty {
            candle::DType::U8 => { $(let $n = $number.abs() as u8;)+ $body }
            candle::DType::U32 => { $(let $n = $number.abs() as u32;)+ $body }
            candle::DType::I16 => { $(let $n = $number as i16;)+ $body }
            candle::DType::I32 => { $(let $n = $number as i32;)+ $body }
            candle::DType::I64 => { $(let $n = $number as i64;)+ $body }
            candle::DType::BF16 => { $(let $n = bf16::from_f64($number);)+ $body }
            candle::DType::F16 => { $(let $n = f16::from_f64($number);)+ $body }
            candle::DType::F32 => { $(let $n = $number as f32;)+ $body }
            candle::DType::F64 => { $(let $n = $number;)+ $body }
            candle::DType::F8E4M3 => { $(let $n = F8E4M3::from_f64($number);)+ $body }
            other => candle::bail!("no numbers of {other:?}"),
        }
    };
}

pub fn apply(op: &Op, ts: &[Tensor]) -> Result<Vec<Value>> {
    match op {
        Op::Format => {
            // A panic in upstream's `Display` poisons the options, which makes all later calls panic.
            candle::display::print_options().clear_poison();
            Ok(vec![
                Value::Text(format!("{}", ts[0])),
                Value::Text(format!("{:?}", ts[0])),
            ])
        }
        // The result of these is the change to their first argument.
        Op::SliceSet(axis, offset) => {
            let dst = ts[0].copy()?;
            on_axis!(*axis, |d| dst.slice_set(&ts[1], d, *offset))?;
            values(&[dst])
        }
        Op::Fill(name, number) => {
            let dst = &ts[0];
            match *name {
                "zero_set" => dst.zero_set()?,
                "one_set" => dst.one_set()?,
                _ => with_numbers!(dst.dtype(), (n = *number), dst.const_set(Scalar::from(n)))?,
            }
            values(std::slice::from_ref(dst))
        }
        Op::ByIds(name @ ("scatter_set" | "scatter_add_set"), axis) => {
            let dst = ts[0].copy()?;
            on_axis!(
                *axis,
                |d| call!(name, dst, (&ts[1], &ts[2], d), scatter_set scatter_add_set)
            )?;
            values(&[dst])
        }
        _ => values(&outputs(op, ts)?),
    }
}

/// The tensors that the op returns.
pub fn outputs(op: &Op, ts: &[Tensor]) -> Result<Vec<Tensor>> {
    match op {
        Op::Sort("sort_last_dim", ascending) => {
            let (sorted, ids) = ts[0].sort_last_dim(*ascending)?;
            Ok(vec![sorted, ids])
        }
        Op::Chunk(n, axis) => on_axis!(*axis, |d| ts[0].chunk(*n, d)),
        Op::Meshgrid(xy) => Tensor::meshgrid(ts, *xy),
        Op::Chain(ops) => super::gradient::chain(ops, ts),
        _ => Ok(vec![output(op, ts)?]),
    }
}

fn output(op: &Op, ts: &[Tensor]) -> Result<Tensor> {
    match op {
        Op::Listed(name) => listed(name, &ts[0], &ts[1]),
        Op::Unary(..) | Op::Binary(..) | Op::WithScalar(..) | Op::Operator(..) => {
            elementwise(op, ts)
        }
        Op::Affine(..) | Op::Powf(_) | Op::Elu(_) | Op::Clamp(..) | Op::RoundTo(_) => {
            elementwise(op, ts)
        }
        Op::Reduce(..) | Op::Along(..) | Op::Whole(_) => reduction(op, &ts[0]),
        Op::Product(name) => call!(name, ts[0], (&ts[1]), matmul broadcast_matmul dot mv),
        Op::Conv1d(_) | Op::Conv2d(_) | Op::ConvTranspose1d(_) | Op::ConvTranspose2d(_) => {
            neural::output(op, ts)
        }
        Op::Pool(..) | Op::Resize(..) | Op::Bilinear(..) | Op::BilinearScale(..) => {
            neural::output(op, ts)
        }
        Op::Make(name, ty, numbers) => make(name, *ty, numbers),
        Op::ToDtype(ty) => ts[0].to_dtype(dtype(*ty)),
        Op::ByIds(..) | Op::Embedding | Op::WhereCond | Op::Sort(..) | Op::Index(_) => {
            indexing(op, ts)
        }
        Op::SliceAssign(_) | Op::SliceScatter(..) | Op::SliceScatter0(_) => indexing(op, ts),
        _ => movement(op, ts),
    }
}

/// The op of that name in the list of candle-conformance.
fn listed(name: &str, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    match CASES.iter().find(|case| case.name == name) {
        Some(case) => (case.run)(&Inputs::of(x.clone(), y.clone())?),
        None => candle::bail!("the list has no {name}"),
    }
}

fn elementwise(op: &Op, ts: &[Tensor]) -> Result<Tensor> {
    let t = &ts[0];
    match op {
        Op::Unary(name) => listed(name, t, t),
        Op::Binary(name) if name.starts_with("broadcast_") || *name == "pow" => {
            call!(name, t, (&ts[1]), pow
                broadcast_add broadcast_sub broadcast_mul broadcast_div broadcast_pow broadcast_maximum broadcast_minimum
                broadcast_eq broadcast_ne broadcast_lt broadcast_le broadcast_gt broadcast_ge)
        }
        Op::Binary(name) => listed(name, t, &ts[1]),
        Op::WithScalar(name, number) => with_numbers!(t.dtype(), (n = *number), {
            call!(name, t, (n), eq ne lt le gt ge maximum minimum)
        }),
        Op::Operator(sign, n) => match *sign {
            "+" => t + *n,
            "-" => t - *n,
            "*" => t * *n,
            "/" => t / *n,
            "+t" => *n + t,
            "-t" => *n - t,
            "*t" => *n * t,
            _ => *n / t,
        },
        Op::Affine(mul, add) => t.affine(*mul, *add),
        Op::Powf(e) => t.powf(*e),
        Op::Elu(alpha) => t.elu(*alpha),
        Op::Clamp(low, high) => {
            with_numbers!(t.dtype(), (low = *low, high = *high), t.clamp(low, high))
        }
        Op::RoundTo(decimals) => t.round_to(*decimals),
        other => candle::bail!("{other:?} is not elementwise"),
    }
}

fn reduction(op: &Op, t: &Tensor) -> Result<Tensor> {
    match op {
        Op::Reduce(name, dims) => {
            call!(name, t, (dims.as_slice()), sum sum_keepdim mean mean_keepdim log_sum_exp)
        }
        Op::Along(name, axis) => on_axis!(*axis, |d| call!(name, t, (d),
            max max_keepdim min min_keepdim argmax argmax_keepdim argmin argmin_keepdim var var_keepdim cumsum)),
        Op::Whole(name) => call!(name, t, (), sum_all mean_all max_all min_all norm),
        other => candle::bail!("{other:?} reduces nothing"),
    }
}

fn indexing(op: &Op, ts: &[Tensor]) -> Result<Tensor> {
    let t = &ts[0];
    match op {
        Op::ByIds(name @ ("index_select" | "gather"), axis) => {
            on_axis!(*axis, |d| call!(name, t, (&ts[1], d), index_select gather))
        }
        Op::ByIds(name, axis) => {
            on_axis!(
                *axis,
                |d| call!(name, t, (&ts[1], &ts[2], d), scatter scatter_add index_add)
            )
        }
        Op::Embedding => t.embedding(&ts[1]),
        Op::WhereCond => t.where_cond(&ts[1], &ts[2]),
        Op::Sort(_, ascending) => t.arg_sort_last_dim(*ascending),
        Op::SliceAssign(ranges) => {
            let ranges: Vec<_> = ranges.iter().map(|(start, end)| *start..*end).collect();
            t.slice_assign(&ranges, &ts[1])
        }
        Op::SliceScatter(axis, start) => on_axis!(*axis, |d| t.slice_scatter(&ts[1], d, *start)),
        Op::SliceScatter0(start) => t.slice_scatter0(&ts[1], *start),
        Op::Index(entries) => {
            let ix = |i: usize| indexer(&entries[i]);
            match entries.len() {
                1 => t.i(ix(0)),
                2 => t.i((ix(0), ix(1))),
                3 => t.i((ix(0), ix(1), ix(2))),
                _ => t.i((ix(0), ix(1), ix(2), ix(3))),
            }
        }
        other => candle::bail!("{other:?} indexes nothing"),
    }
}

fn indexer(entry: &Index) -> TensorIndexer {
    match entry {
        Index::At(i) => (*i).into(),
        Index::All => (..).into(),
        Index::Range(start, end) => (*start..*end).into(),
        Index::Inclusive(start, end) => (*start..=*end).into(),
        Index::From(start) => (*start..).into(),
        Index::To(end) => (..*end).into(),
        Index::Ids(ids) => ids.as_slice().into(),
    }
}

fn movement(op: &Op, ts: &[Tensor]) -> Result<Tensor> {
    let t = &ts[0];
    match op {
        Op::Pad(name, axis, left, right) => {
            on_axis!(
                *axis,
                |d| call!(name, t, (d, *left, *right), pad_with_zeros pad_with_same)
            )
        }
        Op::Cat(axis) => on_axis!(*axis, |d| Tensor::cat(ts, d)),
        Op::Stack(axis) => on_axis!(*axis, |d| Tensor::stack(ts, d)),
        Op::Flip(dims) => t.flip(dims),
        Op::Roll(shift, axis) => on_axis!(*axis, |d| t.roll(*shift, d)),
        Op::Unfold(axis, size, step) => on_axis!(*axis, |d| t.unfold(d, *size, *step)),
        Op::Repeat(times) => t.repeat(times.as_slice()),
        Op::Reshape(dims) => t.reshape(dims.as_slice()),
        Op::Transpose(a, b) => on_axis!(*a, |a| on_axis!(*b, |b| t.transpose(a, b))),
        Op::Permute(dims) => t.permute(dims.as_slice()),
        Op::Squeeze(axis) => on_axis!(*axis, |d| t.squeeze(d)),
        Op::Unsqueeze(axis) => on_axis!(*axis, |d| t.unsqueeze(d)),
        Op::Narrow(axis, start, len) => on_axis!(*axis, |d| t.narrow(d, *start, *len)),
        Op::BroadcastAs(dims) => t.broadcast_as(dims.as_slice()),
        Op::BroadcastLeft(dims) => t.broadcast_left(dims.as_slice()),
        Op::Flatten(a, b) => on_axis!(*a, |a| on_axis!(*b, |b| t.flatten(a, b))),
        Op::Plain("detach") => Ok(t.detach()),
        Op::Plain(name) => call!(name, t, (),
            t flatten_all contiguous force_contiguous copy zeros_like ones_like),
        Op::Get(index) => t.get(*index),
        Op::GetOnDim(axis, index) => on_axis!(*axis, |d| t.get_on_dim(d, *index)),
        other => candle::bail!("{other:?} moves nothing"),
    }
}

fn make(name: &str, ty: Ty, numbers: &[f64]) -> Result<Tensor> {
    let cpu = &Device::Cpu;
    let count = |i: usize| numbers[i] as usize;
    match name {
        "eye" => Tensor::eye(count(0), dtype(ty), cpu),
        "tril2" => Tensor::tril2(count(0), dtype(ty), cpu),
        "triu2" => Tensor::triu2(count(0), dtype(ty), cpu),
        "zeros" => Tensor::zeros((count(0), count(1)), dtype(ty), cpu),
        "ones" => Tensor::ones((count(0), count(1)), dtype(ty), cpu),
        "full" => with_numbers!(
            dtype(ty),
            (n = numbers[2]),
            Tensor::full(n, (count(0), count(1)), cpu)
        ),
        "arange" => with_numbers!(
            dtype(ty),
            (from = numbers[0], to = numbers[1]),
            Tensor::arange(from, to, cpu)
        ),
        _ => with_numbers!(
            dtype(ty),
            (from = numbers[0], to = numbers[1], step = numbers[2]),
            Tensor::arange_step(from, to, step, cpu)
        ),
    }
}
