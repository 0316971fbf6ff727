//! `+ - * /` between tensors, results of tensors, and numbers. Each returns a `Result`; the shapes of two tensors must be equal (use
//! `broadcast_add` and the like otherwise).

use std::borrow::Borrow;
use std::ops::{Add, Div, Mul, Sub};

use crate::{Error, Result, Tensor};

macro_rules! operator {
    ($trait:ident, $fn:ident, |$t:ident, $x:ident| $with_number:expr, $number_first:expr) => {
        impl<B: Borrow<Tensor>> $trait<B> for Tensor {
            type Output = Result<Tensor>;

            fn $fn(self, rhs: B) -> Self::Output {
                Tensor::$fn(&self, rhs.borrow())
            }
        }

        impl<B: Borrow<Tensor>> $trait<B> for &Tensor {
            type Output = Result<Tensor>;

            fn $fn(self, rhs: B) -> Self::Output {
                Tensor::$fn(self, rhs.borrow())
            }
        }

        impl<B: Borrow<Tensor>> $trait<Tensor> for Result<B> {
            type Output = Result<Tensor>;

            fn $fn(self, rhs: Tensor) -> Self::Output {
                Tensor::$fn(self?.borrow(), &rhs)
            }
        }

        impl<B: Borrow<Tensor>> $trait<&Tensor> for Result<B> {
            type Output = Result<Tensor>;

            fn $fn(self, rhs: &Tensor) -> Self::Output {
                Tensor::$fn(self?.borrow(), rhs)
            }
        }

        impl<B: Borrow<Tensor>> $trait<std::result::Result<B, Error>> for Tensor {
            type Output = Result<Tensor>;

            fn $fn(self, rhs: std::result::Result<B, Error>) -> Self::Output {
                Tensor::$fn(&self, rhs?.borrow())
            }
        }

        impl<B: Borrow<Tensor>> $trait<std::result::Result<B, Error>> for &Tensor {
            type Output = Result<Tensor>;

            fn $fn(self, rhs: std::result::Result<B, Error>) -> Self::Output {
                Tensor::$fn(self, rhs?.borrow())
            }
        }

        impl $trait<f64> for &Tensor {
            type Output = Result<Tensor>;

            fn $fn(self, rhs: f64) -> Self::Output {
                let ($t, $x) = (self, rhs);
                $with_number
            }
        }

        impl $trait<f64> for Tensor {
            type Output = Result<Tensor>;

            fn $fn(self, rhs: f64) -> Self::Output {
                $trait::$fn(&self, rhs)
            }
        }

        impl $trait<&Tensor> for f64 {
            type Output = Result<Tensor>;

            fn $fn(self, rhs: &Tensor) -> Self::Output {
                let ($t, $x) = (rhs, self);
                $number_first
            }
        }

        impl $trait<Tensor> for f64 {
            type Output = Result<Tensor>;

            fn $fn(self, rhs: Tensor) -> Self::Output {
                $trait::$fn(self, &rhs)
            }
        }
    };
}

operator!(Add, add, |t, x| t.affine(1., x), t.affine(1., x));
operator!(Sub, sub, |t, x| t.affine(1., -x), t.affine(-1., x));
operator!(Mul, mul, |t, x| t.affine(x, 0.), t.affine(x, 0.));
operator!(
    Div,
    div,
    |t, x| t.affine(1. / x, 0.),
    t.recip()?.affine(x, 0.)
);
