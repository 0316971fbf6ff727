// Philox 4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Four words of random bits for an
// index in the sequence of a seed.

fn philox(place: vec2<u32>, seed: vec2<u32>) -> vec4<u32> {
  var counter = vec4<u32>(place, 0u, 0u);
  var key = seed;
  for (var round = 0u; round < 10u; round++) {
    let a = wide_mul(0xd2511f53u, counter.x);
    let b = wide_mul(0xcd9e8d57u, counter.z);
    counter = vec4<u32>(b.y ^ counter.y ^ key.x, b.x, a.y ^ counter.w ^ key.y, a.x);
    key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  }
  return counter;
}
