"""`python -m spectral_ode`."""

import sys

from spectral_ode.cli import main

sys.exit(main())
