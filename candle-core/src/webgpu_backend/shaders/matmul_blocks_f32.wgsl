// lhs in f32.

alias LhsEight = array<vec4<f32>, 2>;
alias RhsEight = array<vec4<f32>, 2>;
alias Number = f32;

struct Staged {
  eight: LhsEight,
  run: vec2<f32>,
}

fn dot_eight(lhs: LhsEight, rhs: RhsEight, sum: f32) -> f32 {
  return sum + (dot(lhs[0], rhs[0]) + dot(lhs[1], rhs[1]));
}

fn staged(eight: array<vec4<f32>, 2>) -> Staged {
  let four = eight[0] + eight[1];
  var sum = (four.x + four.y) + (four.z + four.w);
  for (var lanes = 1u; lanes < RUN_EIGHTS; lanes *= 2u) {
    sum += subgroupShuffleXor(sum, lanes);
  }
  return Staged(eight, vec2<f32>(1.0, sum));
}
