// What the page searches first.

export const QUESTION = "Why does bread rise?";

export const TEXT = `The tides follow the Moon. Its pull is stronger on the near side of the Earth than on the far side, so the water bulges on both. As the Earth turns, most coasts pass two bulges a day.

Yeast eats the sugars in dough and gives off carbon dioxide. The gas is caught in a net of gluten, which kneading has stretched and strengthened. In the oven the bubbles grow once more before the crumb sets.

A lighthouse lens is cut into rings. Each ring bends the light of the lamp into one flat beam, with a tenth of the glass that a whole lens would need. The beam can be seen from twenty miles away.

Cats see well at night. A mirror behind the retina sends light through it a second time, which is why their eyes shine in the beam of a lamp.

Old maps put east at the top, where the sun rises; to find one's way was to orient the map. North came with the compass.

Ice floats because water widens as it freezes. A lake therefore freezes from above, and the fish live on in the water of four degrees at the bottom.

The first computers were people. They worked out tables of logarithms by hand, in teams, each adding what the one before had written.
`;
