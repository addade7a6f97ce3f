"""Theory: what every design costs and delivers, known before anything is built."""
