"""Until the tests of keys import these from `treewright._json`."""

from treewright._core.registration import deserialize as deserialize
from treewright._json import decode as decode
from treewright._json import encode as encode
